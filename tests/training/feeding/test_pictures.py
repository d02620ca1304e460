from pathlib import Path

import pytest
from picture_folders import CLASSES, PACK, make_pictures, pack
from planned_trials import planned_trials
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.checks import check_trials
from scalelab.experiment.spec import Experiment
from scalelab.site.choice import site_of
from scalelab.training.feeding.pictures import PictureFiles


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    make_pictures(place / "pictures")
    pack(place)
    return place


def test_the_documentation_packs_so() -> None:
    page = Path(__file__).parents[3] / "docs" / "feeding.md"
    assert PACK in page.read_text()


def test_packing_twice_gives_the_same_bytes(place: Path, tmp_path: Path) -> None:
    make_pictures(tmp_path / "pictures")
    pack(tmp_path)
    names = [f"part-a{letter}.tar" for letter in "abcd"]
    assert sorted(path.name for path in (place / "shards").iterdir()) == names
    for name in names:
        again = (tmp_path / "shards" / name).read_bytes()
        assert (place / "shards" / name).read_bytes() == again


def test_folder_and_archives_hold_the_same_pictures(place: Path) -> None:
    files = PictureFiles(data=str(place / "pictures"))
    packed = PictureFiles(shards=str(place / "shards"), feed="tar")
    for part, other in zip(files.split(), packed.split(), strict=True):
        assert [(p.name, p.size) for p in part] == [(p.name, p.size) for p in other]
    for picture in packed.found():
        content = Path(picture.path).read_bytes()[picture.offset :][: picture.size]
        assert content == (place / "pictures" / picture.name).read_bytes()


def test_a_fifth_of_each_class_is_held_out(place: Path) -> None:
    training, held_out = PictureFiles(data=str(place / "pictures")).split()
    assert not {p.name for p in training} & {p.name for p in held_out}
    for name, count in CLASSES.items():
        parts = [
            sum(p.class_name == name for p in part) for part in (training, held_out)
        ]
        assert parts == [count - round(count / 5), round(count / 5)]


def test_a_new_picture_moves_few_others(place: Path, tmp_path: Path) -> None:
    make_pictures(tmp_path / "p", CLASSES)
    (tmp_path / "p" / "red" / "new.png").write_bytes(b"")
    _, before = PictureFiles(data=str(place / "pictures")).split()
    _, after = PictureFiles(data=str(tmp_path / "p")).split()
    assert len({p.name for p in before} ^ {p.name for p in after}) <= 2


def test_a_name_that_comes_twice_is_refused(place: Path, tmp_path: Path) -> None:
    shard = (place / "shards" / "part-aa.tar").read_bytes()
    for name in ("one.tar", "two.tar"):
        (tmp_path / name).write_bytes(shard)
    with refused("picture_twice", "one.tar", "two.tar"):
        PictureFiles(shards=str(tmp_path), feed="tar").found()


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({}, r"holds no folder of pictures \(\.bmp, \.gif"),
        ({"red": 4}, r"has pictures of red alone\. Put those of each class"),
        ({"red": 4, "blue": 1}, r"has one picture of class 'blue'; it takes two"),
    ],
)
def test_too_few_pictures_are_refused(
    tmp_path: Path, classes: dict[str, int], message: str
) -> None:
    make_pictures(tmp_path, classes)
    with pytest.raises(SpecError, match=message):
        PictureFiles(data=str(tmp_path)).split()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feed": "stream"}, r"^feed='stream' must be folder or tar or copy_first\.$"),
        ({"order": "random"}, r"^order='random' must be replicated or sharded\.$"),
        ({"feed": "tar"}, r"^feed=tar reads shards, which is None\. Write workload: "),
        ({"data": "lost"}, r"^data='lost' is no folder: .*lost does not exist"),
        ({"shuffle_buffer": 0}, r"^shuffle_buffer=0 must be a whole number, at least"),
        ({"image_size": 4}, r"^image_size=4 must be a whole number, at least 8\.$"),
        ({"held_out_fraction": 1}, r"^held_out_fraction=1 must be between 0 and 1\.$"),
        ({"store": {"opens": 1}}, r"^store=\{'opens': 1\} must be declared by open_s "),
        ({"store": {"open_s": -1}}, r"^store\.open_s=-1 must be seconds, at least 0\."),
        ({"store": {"bytes_per_s": 0}}, r"^store\.bytes_per_s=0 must be a number abov"),
        ({"batch": 64}, r"has 34 pictures to train on, fewer than a global batch of 1"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(
    place: Path, changes: dict[str, object], message: str
) -> None:
    given = dict(changes)
    batch = given.pop("batch", 8)
    workload = {"name": "image_folder", "data": str(place / "pictures"), **given}
    asked = Experiment.from_text(
        f"name: a\nworkload: {workload!r}\ngpus: [1, 2]\nlocal_batch_size: {batch}\n"
        "learning_rate: 0.1\n"
        "job: {target: val_acc >= 0.7, samples: 100, samples_per_epoch: 34}\n"
        "measure: {kind: [throughput, convergence], max_samples: 500}\n"
    )
    site = site_of({"device_type": "cpu", "gpus_per_node": 2})
    with pytest.raises(SpecError, match=message):
        check_trials(asked, site, planned_trials(asked, site))


@pytest.mark.parametrize(
    ("feed", "most", "message"),
    [
        (
            "tar",
            4,
            r"^A sharded order deals the shards out to 5 ranks, and there are 4",
        ),
        (
            "folder",
            34,
            r"the training samples out to 35 ranks, and there are 34\. Make",
        ),
    ],
)
def test_more_ranks_than_parts_to_deal_out_are_refused_before_anything_runs(
    place: Path, feed: str, most: int, message: str
) -> None:
    workload = {
        "name": "image_folder",
        "data": str(place / "pictures"),
        "shards": str(place / "shards"),
        "feed": feed,
    }

    def check(order: str, gpus: int, nodes: str = "") -> None:
        asked = Experiment.from_text(
            f"name: a\nworkload: {workload!r}\ngpus: [1, {gpus}]\n"
            f"local_batch_size: 1\noptions: {{order: {order}}}\n"
        )
        text = {"device_type": "cpu", "gpus_per_node": 40}
        site = site_of({**text, "scheduler": nodes} if nodes else text)
        check_trials(asked, site, planned_trials(asked, site))

    check("[replicated, sharded]", most)
    check("replicated", most + 1)
    with pytest.raises(SpecError, match=message):
        check("[replicated, sharded]", most + 1)
    check("sharded", most + 1, nodes="slurm")  # its files are not looked for here
