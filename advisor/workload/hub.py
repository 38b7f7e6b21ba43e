"""The config of a repository on the Hugging Face hub: its ``config.json`` alone, never weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from advisor.errors import WorkloadError
from advisor.text.printable import printable, quoted

__all__ = ["hub_config"]

_CONFIG = "config.json"
_ANSWER_SECONDS = 5.0
"""What a hub that does not answer is waited for before the cache is looked at."""
_PAUSE_SECONDS = 1.0
"""Before a hub is asked a second time, if it failed at once."""
_SERVER_ERROR = 500
"""From this status on, a hub has no answer."""


def hub_config(repository: str) -> Path:
    """Fetch the config of a repository, or take it from the Hugging Face cache where the hub cannot be reached.

    Args:
        repository: ``"org/name"``, or ``"org/name@revision"``.

    Returns:
        The path of the file in the cache.

    Raises:
        WorkloadError: There is no such repository, it may not be read, or it has no config; or the hub cannot be
            reached and the cache has none.
    """
    # Imported here: a command that needs no hub does not wait for its client.
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    named, (name, _, revision) = quoted(f"hf:{repository}"), repository.partition("@")
    unreachable = _why_unreachable(name, revision)
    where: dict[str, Any] = {"revision": revision or None, "local_files_only": bool(unreachable)}
    try:
        return Path(hf_hub_download(name, _CONFIG, etag_timeout=_ANSWER_SECONDS, **where))
    except LocalEntryNotFoundError as error:
        raise WorkloadError(
            f"{named} must be in the Hugging Face cache or on a hub that can be reached, but it is neither "
            f"({unreachable or 'it stopped answering'}). Give the path of a config.json or of a folder with one, run "
            f"`hf download {name} {_CONFIG}` where there is a network, or name a model type such as hf:bert."
        ) from error
    except GatedRepoError as error:
        raise WorkloadError(
            f"{named} must be a repository that you may read, but it is gated. Accept its terms on "
            "huggingface.co and log in with `hf auth login` (or set HF_TOKEN); only its config.json is fetched."
        ) from error
    except RepositoryNotFoundError as error:
        raise WorkloadError(
            f"hf: takes a model type of transformers or a repository on the hub, but there is no {named}, or it is "
            "private. Check its spelling; for a private one log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise WorkloadError(
            f"{named} must name a branch, tag or commit behind the @, but the repository has no {quoted(revision)}. "
            "Leave it out for the newest."
        ) from error
    except EntryNotFoundError as error:
        raise WorkloadError(
            f"a repository given as MODEL must hold a {_CONFIG} of transformers, but {named} has none (one of weights "
            "in another format, or of another library). Write a Python file with build_model and make_batch for it."
        ) from error
    except HFValidationError as error:
        raise WorkloadError(
            f"hf: takes a model type such as hf:bert or a repository such as hf:google-bert/bert-base-uncased, but "
            f"got {named}: {printable(str(error))}"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise WorkloadError(
            f"{named} must be readable from the hub, but that failed: {_in_words(error)}. Give the path of a "
            "config.json."
        ) from error


def _why_unreachable(name: str, revision: str) -> str:
    """Why the hub does not answer; empty if it does, be it with a refusal.

    Its client alone, where the cache has no file either, would ask six times with growing pauses: 23 s without a
    network, and minutes behind a firewall that drops what it is sent.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if is_offline_mode():
        return "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"
    reason = ""
    for pause in (0.0, _PAUSE_SECONDS):
        time.sleep(pause)
        began = time.monotonic()
        try:
            get_hf_file_metadata(hf_hub_url(name, _CONFIG, revision=revision or None), timeout=_ANSWER_SECONDS)
        except HFValidationError:
            return ""
        except HfHubHTTPError as error:
            if error.response.status_code < _SERVER_ERROR:
                return ""
            reason = _in_words(error)
        except Exception as error:  # Those of the HTTP library, which is another one in each version of the client.
            reason = _in_words(error)
        else:
            return ""
        if time.monotonic() - began > _PAUSE_SECONDS:
            break
    return f"it does not answer: {reason}"


def _in_words(error: Exception) -> str:
    lines = printable(str(error)).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
