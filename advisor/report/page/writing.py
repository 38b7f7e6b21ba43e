"""Write the report page of finished studies, never over a file that is not one of ours."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from advisor.decide.answer import Answer
from advisor.errors import OptionError
from advisor.files import write_whole
from advisor.report.page.document import PageDocument
from advisor.report.page.finished import FinishedStudy, read_finished
from advisor.report.page.page_text import is_page
from advisor.report.page.smaller import fitting_text
from advisor.report.page.studies import refuse_folder_of_studies
from advisor.report.page.study_part import study_part
from advisor.text.printable import shown
from advisor.trial.folder import StudyFolder
from advisor.version import __version__

__all__ = ["page_of", "write_report", "write_report_beside"]

_MOST_STUDIES = 5
"""Of 200 policies each, they take just below 3 MB."""


def write_report(folders: Sequence[Path], output: Path | None = None) -> Path:
    """Write one page of one or several studies, side by side.

    Args:
        folders: Of finished studies.
        output: The file; by default ``report.html`` in the study's folder, or here for several.

    Returns:
        The file.

    Raises:
        OptionError: There are too many folders, one is no finished study or is named twice, or the file is not to be
            overwritten.
        OSError: The page cannot be written.
    """
    if len(folders) > _MOST_STUDIES:
        raise OptionError(
            f"One page shows at most {_MOST_STUDIES} studies side by side, but {len(folders)} were named. Name fewer."
        )
    seen: dict[Path, Path] = {}
    for folder in folders:
        place = folder.resolve()
        if place in seen:
            raise OptionError(
                f"Each study may be named once, but {shown(folder)} is the same folder as {shown(seen[place])}. "
                "Leave one of them out."
            )
        seen[place] = folder
        refuse_folder_of_studies(folder)
    studies = [read_finished(folder) for folder in folders]
    if output is None:
        output = studies[0].folder.page if len(studies) == 1 else Path("report.html")
    _refuse_to_overwrite(output)
    write_whole(output, page_of(studies))
    return output


def write_report_beside(answer: Answer) -> str | None:
    """Write a study's page into its folder at the end of a run, whose answer must not be lost.

    Returns:
        A note where that failed, else ``None``.
    """
    folder = StudyFolder(Path(answer.folder))
    try:
        write_report([folder.path])
    except KeyboardInterrupt:
        reason = "it was interrupted"
    except Exception as error:  # a mistake in a picture, say: the answer is worth more
        reason = str(error) or type(error).__name__
    else:
        return None
    return f"{folder.page.name} was not written: {reason}. The answer is not affected"


def page_of(studies: Sequence[FinishedStudy]) -> str:
    """The page of some studies."""
    document = PageDocument(
        version=__version__,
        made=datetime.date.today().isoformat(),
        studies=tuple(study_part(study, f"s{number}") for number, study in enumerate(studies)),
    )
    return fitting_text(document)


def _refuse_to_overwrite(output: Path) -> None:
    rule = "--output must be a new file or an earlier report"
    if output.is_dir():
        raise OptionError(f"{rule}, but {shown(output)} is a folder. Name a file in it.")
    if not output.absolute().parent.is_dir():
        raise OptionError(f"{rule} in a folder that exists, but {shown(output.parent)} does not. Make it first.")
    if (output.exists() or output.is_symlink()) and not (output.is_file() and is_page(output)):
        raise OptionError(f"{rule}, but {shown(output)} is another file. Name another one; it was not changed.")
