"""Reads streams of answers that arrive in several pieces."""


def in_pieces(ask, is_piece):
    """The events of a stream with at least two pieces.

    The server merges pieces that are ready before they can be sent. So on a busy machine a short answer may arrive in
    one piece, and is then requested again.
    """
    for _ in range(50):
        events = list(ask())
        if sum(map(bool, map(is_piece, events))) > 1:
            return events
    raise AssertionError("the answer came in one piece each time")
