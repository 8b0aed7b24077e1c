"""Streams of answers that come in pieces."""


def in_pieces(ask, is_piece):
    """The events of a stream with two pieces or more.

    What is ready before it can be sent goes out as one piece, so on a busy machine a short answer may
    be one: it is asked for again.
    """
    for _ in range(50):
        events = list(ask())
        if sum(map(bool, map(is_piece, events))) > 1:
            return events
    raise AssertionError("the answer came in one piece each time")
