# SPDX-License-Identifier: Apache-2.0
"""A call as one HTML file: read each message, play exactly its audio, see what its text is worth.

``data`` says what the page shows and ``words`` says it in plain words; ``sound`` and ``peaks`` bring the
recording, ``judgement`` the judge's scores; ``page`` makes the file and ``pages`` puts it on the disk. The
page itself is in ``assets``: it runs without a network, and takes all text for text.
"""

from voicetrace.viewer.judgement import Judgement, JudgementError, find_judgement
from voicetrace.viewer.pages import PageError, Written, write_page, write_pages

__all__ = [
    "Judgement",
    "JudgementError",
    "PageError",
    "Written",
    "find_judgement",
    "write_page",
    "write_pages",
]
