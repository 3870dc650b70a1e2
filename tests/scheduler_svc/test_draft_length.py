from scheduler_svc.draft_length import MAX_PAUSE_TOKENS, DraftLength


def test_it_begins_with_as_many_as_allowed():
    assert DraftLength(5).limit(0) == 5


def test_right_drafts_bring_more_up_to_the_most():
    length = DraftLength(8)
    length.record(8, 1, 10)
    assert length.limit(10) == 2
    length.record(2, 2, 13)
    assert length.limit(13) == 4
    length.record(4, 4, 18)
    assert length.limit(18) == 8
    length.record(8, 8, 27)
    assert length.limit(27) == 8


def test_a_short_guess_that_was_right_takes_nothing_away():
    length = DraftLength(8)
    length.record(1, 1, 2)
    assert length.limit(2) == 8


def test_partly_right_drafts_bring_one_more_than_were_right():
    length = DraftLength(5)
    length.record(5, 2, 3)
    assert length.limit(3) == 3


def test_wrong_drafts_become_fewer_and_then_pause():
    length = DraftLength(8)
    length.record(8, 0, 100)
    assert length.limit(100) == 4
    for num_drafts, pause, later in ((4, 1, 2), (2, 3, 1), (1, 7, 1)):
        length.record(num_drafts, 0, 100)
        assert length.limit(100 + pause - 1) == 0
        assert length.limit(100 + pause) == later


def test_a_pause_is_bounded_and_ends_for_good_with_a_right_draft():
    length = DraftLength(4)
    for _ in range(40):
        length.record(1, 0, 1000)
    assert length.limit(1000 + MAX_PAUSE_TOKENS - 1) == 0
    assert length.limit(1000 + MAX_PAUSE_TOKENS) == 1
    length.record(1, 1, 2000)
    length.record(2, 0, 2001)
    assert length.limit(2001) == 1


def test_none_at_most_means_none():
    assert DraftLength(0).limit(5) == 0
