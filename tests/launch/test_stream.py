"""The stream of an attempt, on a disk that fills up."""

import subprocess
import sys
from pathlib import Path

from scalelab.records.streams import read_lines

# A limit on the size of files is a disk that takes a part of a write.
WRITER = """
import resource, sys
from pathlib import Path
from scalelab.launch.progress import StreamWriter

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
stream = StreamWriter(Path(sys.argv[1]))
for step in range(1, 1000):
    stream.append({"step": step})
    try:
        stream.flush()
    except OSError as error:
        print(step, error.strerror)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
stream.close()
"""


def test_a_part_of_a_write_is_taken_back_and_said(tmp_path: Path) -> None:
    path = tmp_path / "stream.jsonl"
    limit = 500 * len('{"step":123}\n') + 3
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(path), str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith(" File too large\n"), done
    assert [row["step"] for row in read_lines(path)] == list(range(1, 1000))
