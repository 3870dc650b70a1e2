from scheduler_svc.liveness import MAX_STEPS_WITHOUT_PROGRESS, LivenessGuard


def stuck(guard, num_steps):
    return [guard.observe(could_progress=True, has_progress=False) for _ in range(num_steps)]


def test_sixteen_steps_without_progress_are_a_stall_which_is_told_once():
    guard = LivenessGuard()
    assert stuck(guard, 40).index(True) == MAX_STEPS_WITHOUT_PROGRESS - 1 == 15
    assert guard.num_stalls == 1
    assert guard.is_stalled


def test_progress_starts_the_count_afresh():
    guard = LivenessGuard()
    assert not any(stuck(guard, 15))
    guard.observe(could_progress=True, has_progress=True)
    assert not any(stuck(guard, 15))
    assert stuck(guard, 1) == [True]


def test_a_step_in_which_nothing_could_move_starts_the_count_afresh():
    guard = LivenessGuard()
    stuck(guard, 15)
    guard.observe(could_progress=False, has_progress=False)
    assert not any(stuck(guard, 15))


def test_a_stall_that_comes_back_counts_again():
    guard = LivenessGuard()
    stuck(guard, 16)
    guard.observe(could_progress=True, has_progress=True)
    assert not guard.is_stalled
    stuck(guard, 16)
    assert guard.num_stalls == 2
