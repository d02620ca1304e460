"""Sites of unlike nodes: what a group is and may say, and which trials it gets."""

from pathlib import Path

import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.inputs.document import parse_document
from scalelab.plan.configurations import configurations, setups
from scalelab.plan.expand import Plan, plan
from scalelab.site.choice import site_of
from scalelab.site.job_script import node_job_script, node_script
from scalelab.site.profile import Site

SLURM = """
name: alpine
scheduler: slurm
device_type: cuda
account: mine
walltime: 4h
python: python3
prologue: [module load cuda]
node_groups:
  a100: {gpu_type: a100, gpus_per_node: 4, nodes: 8, partition: gpu,
         cores_per_node: 64, memory_per_node: 240MiB, price_per_gpu_hour: 1.2}
  h100: {gpu_type: h100, gpus_per_node: 8, nodes: 2, constraint: sxm, walltime: 2h,
         partition: new, prologue: [module load cuda/12], python: /new/python}
"""
PBS = """
scheduler: pbs
device_type: cuda
queue: gpu
python: python3
node_groups:
  old: {gpus_per_node: 2, cores_per_node: 16}
  new: {gpus_per_node: 4, cores_per_node: 32, queue: new, gpu_type: h100}
"""
HEAD = "name: a\nworkload: digits_mlp\nlearning_rate: 0.1\nmeasure: {repeats: 1}\n"


def site(text: str) -> Site:
    return site_of(parse_document(text, source="site"))


def planned(text: str, where: str = SLURM) -> Plan:
    return plan(Experiment.from_text(HEAD + text), site(where))


def script(where: Site, num_nodes: int) -> list[str]:
    text = node_job_script(
        where, num_nodes, job_name="vit-1", directory=Path("/shared/vit")
    )
    return text.splitlines()


UNLIKE = """
name: farm
scheduler: slurm
device_type: cuda
python: python3
node_groups:
  p2: {gpu_type: k80, gpus_per_node: 1, nodes: 4, price_per_node_hour: 0.9}
  c4: {device_type: cpu, gpus_per_node: 2, cores_per_node: 2, nodes: 10,
       price_per_node_hour: 0.39}
"""


class TestAGroup:
    def test_may_have_another_type_of_device(self) -> None:
        groups = site(UNLIKE).groups

        assert [each.device_type for each in groups.values()] == ["cuda", "cpu"]
        assert "--gpus-per-node=k80:1" in "".join(script(groups["p2"], 1))
        asked = script(groups["c4"], 1)
        assert "#SBATCH --cpus-per-task=2" in asked
        assert not any("gpu" in line.lower() for line in asked)

    def test_says_which_settings_of_gpus_its_cpus_do_not_have(self) -> None:
        with_model = UNLIKE.replace("gpu_type: k80, ", "").replace(
            "device_type: cuda", "device_type: cuda\ngpu_type: k80"
        )
        with refused("setting_without_gpus", "node_groups.c4", "gpu_type"):
            site(with_model)
        freed = with_model.replace("device_type: cpu,", "device_type: cpu, gpu_type:,")
        assert site(freed).groups["c4"].gpu_type is None
        with pytest.raises(SpecError, match="device_type"):
            site(UNLIKE.replace("device_type: cpu", "device_type: null"))

    def test_is_a_site_that_says_what_the_whole_one_says_unless_it_does(self) -> None:
        groups = site(SLURM).groups
        a100, h100 = groups["a100"], groups["h100"]

        assert list(groups) == ["a100", "h100"]
        assert (a100.name, a100.group) == ("alpine.a100", "a100")
        assert (a100.walltime, h100.walltime) == (4 * 3600, 2 * 3600)
        assert (a100.account, h100.account) == ("mine", "mine")
        assert (a100.num_devices, h100.num_devices) == (32, 16)
        assert (a100.price_per_gpu_hour, h100.price_per_gpu_hour) == (1.2, None)
        assert list(a100.groups) == ["a100"]

    def test_of_a_site_whose_nodes_are_alike_is_the_site(self) -> None:
        alike = site_of({"device_type": "cpu", "gpus_per_node": 2})

        assert alike.groups == {None: alike}
        assert alike.group is None

    def test_may_leave_out_what_the_site_says(self) -> None:
        text = SLURM.replace("walltime: 2h,", "walltime: null, account: null,")

        assert site(text).groups["h100"].walltime is None
        assert site(text).groups["h100"].account is None

    def test_has_a_script_of_its_own_under_slurm(self) -> None:
        groups = site(SLURM).groups

        assert script(groups["a100"], 1) == [
            "#!/usr/bin/env bash",
            "#SBATCH --job-name=vit-1",
            "#SBATCH --partition=gpu",
            "#SBATCH --account=mine",
            "#SBATCH --nodes=1",
            "#SBATCH --ntasks-per-node=1",
            "#SBATCH --cpus-per-task=64",
            "#SBATCH --gpus-per-node=a100:4",
            "#SBATCH --mem=240M",
            "#SBATCH --time=04:00:00",
            "#SBATCH --no-requeue",
            "#SBATCH --output=/shared/vit/vit-1.log",
            "module load cuda",
            "exec python3 -m scalelab.cluster.node_process "
            "/shared/vit/nodes-a100.json vit-1",
        ]
        assert script(groups["h100"], 2) == [
            "#!/usr/bin/env bash",
            "#SBATCH --job-name=vit-1",
            "#SBATCH --partition=new",
            "#SBATCH --account=mine",
            "#SBATCH --constraint=sxm",
            "#SBATCH --nodes=2",
            "#SBATCH --ntasks-per-node=1",
            "#SBATCH --gpus-per-node=h100:8",
            "#SBATCH --time=02:00:00",
            "#SBATCH --no-requeue",
            "#SBATCH --output=/shared/vit/vit-1.log",
            "module load cuda/12",
            "exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1 "
            "bash /shared/vit/node-h100.sh vit-1",
        ]
        assert node_script(groups["h100"], Path("/shared/vit")).splitlines()[1:] == [
            "module load cuda/12",
            "exec /new/python -m scalelab.cluster.node_process "
            '/shared/vit/nodes-h100.json "$1"',
        ]

    def test_has_a_script_of_its_own_under_pbs(self) -> None:
        groups = site(PBS).groups

        assert script(groups["old"], 1)[2:4] == [
            "#PBS -q gpu",
            "#PBS -l select=1:ncpus=16:ngpus=2",
        ]
        assert script(groups["new"], 3)[2:4] == [
            "#PBS -q new",
            "#PBS -l select=3:ncpus=32:ngpus=4:gpu_model=h100",
        ]
        assert script(groups["new"], 3)[-1] == (
            "exec pbsdsh -- /bin/bash /shared/vit/node-new.sh vit-1"
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SLURM.replace("partition: gpu", "queue: gpu"),
            r"node_groups\.a100: queue belongs to scheduler pbs, but this site has",
        ),
        (
            SLURM.replace("gpus_per_node: 8,", ""),
            r"node_groups\.h100: scheduler=slurm needs gpus_per_node",
        ),
        (
            SLURM.replace("gpus_per_node: 8", "gpus_per_node: 0"),
            r"node_groups\.h100\.gpus_per_node=0 must be at least 1",
        ),
        (
            SLURM.replace("constraint: sxm", "constriant: sxm"),
            r"unknown key 'node_groups\.h100\.constriant'\. Did you mean 'constraint'",
        ),
        (
            SLURM.replace("constraint: sxm", "scheduler: pbs"),
            r"unknown key 'node_groups\.h100\.scheduler'",
        ),
        (
            SLURM.replace("constraint: sxm", "directives: [--mem=4G]"),
            r"node_groups\.h100: directives: '--mem' is written by ScaleLab",
        ),
        (
            SLURM.replace("240MiB", "240MiB, memory_per_gpu: 1GB"),
            r"node_groups\.a100: memory_per_node and memory_per_gpu exclude each other",
        ),
        (SLURM.replace("  a100:", "  a/100:"), r"node_groups"),
        (
            "device_type: cpu\nnode_groups: {a: {gpus_per_node: 1}}",
            "node_groups belongs to scheduler slurm or pbs, .* scheduler=local",
        ),
        (
            "scheduler: allocation\ndevice_type: cpu\ngpus_per_node: 1\n"
            "node_groups: {a: {gpus_per_node: 1}}",
            "node_groups belongs to scheduler slurm or pbs, .* scheduler=allocation",
        ),
    ],
)
def test_what_a_group_must_not_say(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        site(text)


class TestTrials:
    def test_run_on_the_first_group_unless_told(self) -> None:
        found = planned("gpus: [4, 8]\nlocal_batch_size: 16")

        assert {trial.node_group for trial in found.trials} == {"a100"}

    def test_run_on_every_group_that_is_named(self) -> None:
        found = planned("gpus: [4, 8]\nlocal_batch_size: 16\nnode_group: [a100, h100]")

        where = [(trial.node_group, str(trial.allocation)) for trial in found.trials]
        assert where == [
            ("a100", "1x4"),
            ("a100", "2x4"),
            ("h100", "1x4"),
            ("h100", "1x8"),
        ]
        assert len({trial.trial_id for trial in found.trials}) == 4

    def test_have_no_group_where_nodes_are_alike(self) -> None:
        alike = "device_type: cpu\ngpus_per_node: 4"
        found = planned("gpus: 4\nlocal_batch_size: 16", alike)

        assert found.trials[0].node_group is None

    def test_that_only_one_group_can_hold_are_left_out_of_the_other(self) -> None:
        found = planned("gpus: [16, 32]\nlocal_batch_size: 8\nnode_group: [h100, a100]")

        where = [(trial.node_group, trial.world_size) for trial in found.trials]
        assert where == [("h100", 16), ("a100", 16), ("a100", 32)]
        assert found.left_out == (
            "gpus=32 is more than site 'alpine.h100' has: 2 x 8 = 16 GPUs. Use at most "
            "16, or say in the site that it has more (nodes, gpus_per_node).",
        )

    def test_learn_samples_to_a_target_on_one_group_only(self) -> None:
        head = HEAD.replace(
            "{repeats: 1}",
            "{kind: [throughput, convergence], repeats: 1, max_samples: 100, "
            "evaluate_every_samples: 10}\njob: {target: a >= 1}",
        )
        text = "gpus: [1, 2]\nglobal_batch_size: [8, 16]\nnode_group: [h100, a100]"
        found = plan(Experiment.from_text(head + text), site(SLURM)).trials

        groups = [trial.node_group for trial in found if trial.kind == "throughput"]
        assert sorted(set(map(str, groups))) == ["a100", "h100"]
        learning = [trial for trial in found if trial.kind == "convergence"]
        assert {trial.node_group for trial in learning} == {"h100"}

    def test_look_for_the_largest_batch_in_each_group(self) -> None:
        experiment = Experiment.from_text(
            HEAD + "gpus: [4, 8]\nlocal_batch_size: auto\nnode_group: [a100, h100]"
        )
        where = site(SLURM)
        small, large = setups(experiment, where)
        found = plan(experiment, where, {small: 8, large: 16})

        assert str(small) == "fp32 ddp node_group=a100"
        batches = {t.node_group: t.local_batch_size for t in found.trials}
        assert batches == {"a100": 8, "h100": 16}
        total = experiment.model_copy(update={"global_batch_size": (64,)})
        assert configurations(total, where)[-1].at_most == 16

    @pytest.mark.parametrize(
        ("text", "where", "message"),
        [
            (
                "node_group: [a100, h10]\ngpus: 1",
                SLURM,
                r"node_group='h10' is no node group of site 'alpine'\. Did you mean "
                r"'h100'\? Valid: a100, h100\.",
            ),
            (
                "node_group: a100\ngpus: 1",
                "device_type: cpu\ngpus_per_node: 4",
                "node_group='a100', but site 'local' has no node_groups: its nodes",
            ),
            (
                "node_group: [a100, h100]\ngpus: [1, 64]",
                SLURM,
                "gpus=64 is more than site 'alpine.a100' has: 8 x 4 = 32 GPUs",
            ),
            (
                "node_group: [a100, h100]\nnodes: 2\ngpus_per_node: 8",
                SLURM,
                "gpus_per_node=8 is more than a node of site 'alpine.a100' has: 4 GPUs",
            ),
        ],
    )
    def test_that_cannot_be_are_refused(
        self, text: str, where: str, message: str
    ) -> None:
        with pytest.raises(SpecError, match=message):
            planned(f"{text}\nlocal_batch_size: 8", where)


def test_what_ran_on_no_group_is_asked_of_a_site_without() -> None:
    with pytest.raises(SpecError, match="node_groups, a100, h100, and none of them"):
        site(SLURM).in_group(None)


def test_the_experiment_on_cpus_and_gpus_can_be_planned() -> None:
    path = Path(__file__).parents[2] / "experiments" / "cpu_or_gpu.yaml"
    experiment = Experiment.from_file(path)
    where = experiment.resolve_site()
    trials = plan(experiment, where).trials

    sizes = {
        name: {t.world_size for t in trials if t.node_group == name}
        for name in ("c4", "p2")
    }
    assert sizes == {"c4": {1, 2, 4, 8, 20, 40}, "p2": {1, 2, 4}}
    assert {t.parallelism for t in trials} == {"ddp", "parameter_server"}
    types = {str(name): group.device_type for name, group in where.groups.items()}
    assert types == {"c4": "cpu", "p2": "cuda"}
