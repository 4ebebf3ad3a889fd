"""Uploads that commits may still refer to: those of jobs that were not given up, and begun above the floor.

```
floor                                uploads that were begun below this commit are void
void/<job>                           the commit at which a job was given up: what it has uploaded is void
nonce/<writer>                       [sequence, commit, outcomes]
```
"""

from __future__ import annotations

from . import transactions
from .book import Book, Rejected, quoted
from .commit import Action
from .extents import begun_at, job_of


def floor_of(book: Book) -> int:
    """Uploads that were begun when fewer commits were known are void."""
    return int(book.entries.get("floor", 0))


def voided(book: Book, job: str) -> int:
    """The commit at which a job was given up; -1 if it was not, or that is forgotten."""
    if not book.entries.of_kind("void"):  # as nearly always, and a commit may ask thousands of times
        return -1
    return int(book.entries.get(f"void/{quoted(job)}", -1))


def check_floor(book: Book, key: str) -> None:
    """An upload that was begun long ago may have been removed, or is about to be."""
    try:
        known, job = begun_at(key), job_of(key)
    except ValueError:
        raise Rejected("InvalidConfig", "what is referred to is no upload") from None
    floor = floor_of(book)
    if known < floor:
        raise Rejected("Void", f"{key} was begun below commit {floor}, and may be gone: upload it again")
    if job is not None and known <= voided(book, job):
        raise Rejected("Void", f"the job {job!r} was given up, and what it has uploaded may be gone")


def give_up(book: Book, action: Action) -> None:
    """A job is given up: what it has begun to upload, and no commit has adopted by now, never will be. What it
    begins later, when it is repeated, counts again."""
    book.put(f"void/{quoted(action['job'])}", book.number)


def raise_floor(book: Book, action: Action) -> int:
    """Later references to uploads that were begun below this are void. What was remembered for those who refer to
    them is forgotten: nonces, and which jobs were given up. So are producers that have written nothing since."""
    floor = int(action["number"])
    if floor > book.number:
        raise Rejected("InvalidConfig", f"there are {book.number} commits, not {floor}")
    before = floor_of(book)
    floor = max(before, floor)
    if floor != before:
        book.put("floor", floor)
    for name in book.entries.names("nonce/"):
        if book.entries.get(name)[1] < floor:
            book.drop(name)
    for name in book.entries.names("void/"):
        if book.entries.get(name) < floor:
            book.drop(name)
    transactions.forget_producers(book, floor)
    return floor
