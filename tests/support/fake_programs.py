"""Programs that stand where those of a batch system do, and answer as a test says."""

from __future__ import annotations

from pathlib import Path


class FakePrograms:
    """Programs in a folder.

    Parameters
    ----------
    folder
        Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder

    def does(self, name: str, script: str = "true", **files: str) -> Path:
        """Make a program that runs a script of sh.

        Files of the program are ``$in.NAME`` there. They are all found where nothing
        else is on the path if the script names what it calls by its path.

        Returns
        -------
        Path
            A file with one line for each time it was called: the words it was given.
        """
        path = self.folder / name
        for suffix, text in files.items():
            path.with_name(f"{name}.{suffix}").write_text(text)
        asked = path.with_name(f"{name}.asked")
        path.write_text(f'#!/bin/sh\nin={path}\necho "$*" >>{asked}\n{script}\n')
        path.chmod(0o755)
        return asked

    def says(
        self, name: str, output: str = "", errors: str = "", status: int = 0
    ) -> Path:
        """Make a program that says and returns the same whatever it is asked."""
        script = f"/bin/cat $in.out; /bin/cat $in.err >&2; exit {status}"
        return self.does(name, script, out=output, err=errors)

    def answers(self, name: str, *answers: tuple[str, str], status: int = 0) -> Path:
        """Make a program that answers what it is asked.

        Parameters
        ----------
        name
            Of the program.
        answers
            Words, and what is said where they occur in the command line and none
            before do.
        status
            Exit status of an answer; that of any other question is 1.
        """
        lines, files = [], {}
        for number, (words, answer) in enumerate(answers):
            files[str(number)] = answer
            reply = f"/bin/cat $in.{number}; exit {status}"
            lines.append(f'case "$*" in *"{words}"*) {reply};; esac')
        lines += ['echo "$0 $* has no answer" >&2', "exit 1"]
        return self.does(name, "\n".join(lines), **files)
