import pytest
from sentences import refused

from scalelab.inputs.allocation import Allocation
from scalelab.site.batch_site import BatchSite
from scalelab.site.choice import site_of
from scalelab.site.job_script import directives, job_script

SLURM = {"scheduler": "slurm", "device_type": "cuda", "gpus_per_node": 4}
PBS = {**SLURM, "scheduler": "pbs"}


def lines(settings: dict[str, object], *, gpus: int = 8, **more: object) -> list[str]:
    site = site_of({**settings, **more})
    return directives(site, Allocation.packed(gpus, 4), job_name="vit", walltime_s=None)


@pytest.mark.parametrize("num_nodes", [1, 2, 9, 10, 16])
def test_slurm_asks_for_nodes_and_gpus_on_each(num_nodes: int) -> None:
    assert lines(SLURM, gpus=4 * num_nodes) == [
        "#SBATCH --job-name=vit",
        f"#SBATCH --nodes={num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=4",
    ]


def test_slurm_with_every_setting() -> None:
    found = lines(
        SLURM,
        partition="gpu",
        account="proj",
        qos="long",
        constraint="ib",
        cores_per_node=32,
        memory_per_node="64GiB",
        walltime="36h",
        gpu_request="gres",
        gpu_type="a100",
        exclusive=True,
        directives=["--mail-type=END"],
    )

    assert found == [
        "#SBATCH --job-name=vit",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=proj",
        "#SBATCH --qos=long",
        "#SBATCH --constraint=ib",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=32",
        "#SBATCH --gres=gpu:a100:4",
        "#SBATCH --mem=65536M",
        "#SBATCH --time=1-12:00:00",
        "#SBATCH --exclusive",
        "#SBATCH --mail-type=END",
    ]


def test_slurm_memory_by_gpu_and_typed_gpus() -> None:
    found = lines(SLURM, memory_per_gpu="1GiB", gpu_type="h100")

    assert "#SBATCH --gpus-per-node=h100:4" in found
    assert "#SBATCH --mem-per-gpu=1024M" in found


def test_slurm_asks_for_cores_where_a_device_is_a_core() -> None:
    cores = {**SLURM, "device_type": "cpu"}

    assert "#SBATCH --cpus-per-task=4" in lines(cores)
    assert not any("gpu" in line for line in lines(cores))
    assert lines(cores, cores_per_node=16).count("#SBATCH --cpus-per-task=16") == 1


def test_slurm_asks_for_the_larger_share_of_an_uneven_allocation() -> None:
    found = lines(SLURM, gpus=6)

    assert "#SBATCH --nodes=2" in found
    assert "#SBATCH --gpus-per-node=4" in found


def test_pbs_asks_for_chunks() -> None:
    assert lines(PBS) == [
        "#PBS -N vit",
        "#PBS -l select=2:ncpus=4:ngpus=4",
        "#PBS -l place=scatter",
        "#PBS -r n",
    ]


def test_pbs_with_every_setting() -> None:
    found = lines(
        PBS,
        gpus=6,
        queue="gpu",
        account="proj",
        cores_per_node=16,
        memory_per_node="1GB",
        walltime="36h",
        gpu_type="a100",
        exclusive=True,
        directives=["-m abe"],
    )

    assert found == [
        "#PBS -N vit",
        "#PBS -q gpu",
        "#PBS -A proj",
        "#PBS -l select=1:ncpus=16:ngpus=4:gpu_model=a100:mem=954mb"
        "+1:ncpus=16:ngpus=2:gpu_model=a100:mem=954mb",
        "#PBS -l place=scatter:excl",
        "#PBS -l walltime=36:00:00",
        "#PBS -r n",
        "#PBS -m abe",
    ]


def test_pbs_adds_what_else_each_chunk_needs() -> None:
    found = lines(PBS, gpus=6, chunk=["fast=True", "mpiprocs=1"])

    assert (
        "#PBS -l select=1:ncpus=4:ngpus=4:fast=True:mpiprocs=1"
        "+1:ncpus=2:ngpus=2:fast=True:mpiprocs=1" in found
    )


def test_a_driver_of_pbs_has_a_chunk_of_its_own() -> None:
    job = {"walltime": "1h", "memory": "1GiB", "chunk": ["system=x"]}
    site = site_of({**PBS, "chunk": ["fast=True"], "driver_job": job})
    assert isinstance(site, BatchSite)
    assert site.driver_job is not None
    alone = Allocation.packed(1, 1)
    asked = site.for_driver(site.driver_job, None).request(alone, "driver", None)

    assert "-l select=1:ncpus=1:mem=1024mb:system=x" in asked


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("vit,bs=8", "vit_bs_8"),
        ("it's läuft: (a) $b@c", "it_s_l_uft___a___b_c"),
        ("a+b-1.5_x", "a+b-1.5_x"),
        ("x" * 300, "x" * 230),
    ],
)
def test_pbs_gets_names_that_it_takes(name: str, written: str) -> None:
    asked = directives(site_of(PBS), Allocation.packed(1, 1), job_name=name)

    assert asked[0] == f"#PBS -N {written}"


def test_torque_asks_for_nodes() -> None:
    found = lines(PBS, gpus=6, gpu_request="torque")

    assert "#PBS -l nodes=1:ppn=4:gpus=4+1:ppn=2:gpus=2" in found
    assert not any("place" in line for line in found)


def test_pbs_asks_for_cores_where_a_device_is_a_core() -> None:
    cores = {**PBS, "device_type": "cpu"}

    assert "#PBS -l select=2:ncpus=4" in lines(cores)
    assert "#PBS -l nodes=2:ppn=4" in lines(cores, gpu_request="torque")


def test_a_script_has_directives_first_and_the_prologue_before_the_commands() -> None:
    site = site_of({**SLURM, "prologue": ["module load cuda"]})

    script = job_script(
        site,
        Allocation.packed(4, 4),
        ["srun python train.py"],
        job_name="vit",
        walltime_s=59.5,
    )

    assert script.splitlines() == [
        "#!/usr/bin/env bash",
        "#SBATCH --job-name=vit",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --time=00:01:00",
        "module load cuda",
        "srun python train.py",
    ]


def test_a_site_without_a_batch_system_has_no_script() -> None:
    with refused("site_without_job_script", "'local'", "scheduler=local"):
        lines({"device_type": "cpu"})


def test_an_allocation_larger_than_a_node_is_refused() -> None:
    with refused("more_than_a_node", "4 devices"):
        lines({**SLURM, "gpus_per_node": 2})
