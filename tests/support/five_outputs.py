"""Five outputs that a reader has to understand: two sweeps and three tables."""

import shutil
from pathlib import Path

from scalelab.session import import_table

RUNS = Path(__file__).parents[1] / "golden" / "data" / "runs"
JOB = ("--epochs", "90", "--samples-per-epoch", "1281167")
PICTURES = {1: 790, 2: 1560, 4: 3080, 8: 6050, 16: 11100, 32: 20600}
TOKENS = {8: 32_500, 16: 61_500, 32: 120_000, 64: 236_000, 128: 457_000, 256: 821_000}
# The question of each, as the command line has it
OUTPUTS: dict[str, tuple[str, ...]] = {
    "digits": ("runs/digits",),
    "emulated": ("runs/emulated",),
    "language": ("runs/language", "--samples", "100000000"),
    "doubted": ("runs/doubted", *JOB),
    "nothing": ("runs/pictures", *JOB, "--max-time", "20min"),
}


def tables(here: Path) -> None:
    def write(name: str, columns: str, rows: list[str]) -> None:
        (here / name).write_text("\n".join([columns, *rows, ""]))

    columns = "gpus,nodes,gpu_type,batch_per_gpu,images_per_s"
    pictures = {n: f"{n},{-(-n // 8)},A100,128,{rate}" for n, rate in PICTURES.items()}
    write("pictures.csv", columns, [*pictures.values()])
    doubted = pictures | {16: "16,2,A100,128,1110"}
    write("doubted.csv", columns, [*doubted.values()])
    columns = (
        "model,gpu_type,gpus,nodes,micro_batch_size,accum_steps,seq_len,tokens_per_s"
    )
    language = [f"7B,A100,{n},{n // 8},2,4,2048,{rate}" for n, rate in TOKENS.items()]
    write("language.csv", columns, language)


def five_runs(here: Path) -> None:
    """Make the runs in a folder: two that an earlier ScaleLab swept, three imports."""
    for name in ("digits", "emulated"):
        shutil.copytree(RUNS / name, here / "runs" / name)
    tables(here)
    for name in ("pictures", "doubted", "language"):
        import_table(here / f"{name}.csv", here / "runs" / name)
