"""Several wrong places of one text, told together."""

from __future__ import annotations

from bringup.base.errors import InputError


class Problems:
    """Collects errors, then raises them as one: the first whole, the others as lines below it."""

    def __init__(self) -> None:
        self._errors: list[InputError] = []

    def add(self, error: InputError | None) -> None:
        """Keep an error; None is no error."""
        known = {(str(other.where), other.what) for other in self._errors}
        if error is not None and (str(error.where), error.what) not in known:
            self._errors.append(error)

    def raise_if_any(self) -> None:
        """Raises InputError when something was collected."""
        if not self._errors:
            return
        first, *others = self._errors
        more = [f"{other.where}  {other.what}" + (f" (found {other.found})" if other.found else "") for other in others]
        raise InputError(first.what, where=first.where, expected=first.expected, found=first.found,
                         details=[*first.details, *more], next=first.next)
