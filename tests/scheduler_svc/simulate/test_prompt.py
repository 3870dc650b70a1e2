import pytest

from scheduler_svc.simulate.prompt import VOCAB_SIZE, PromptMaker


def common_length(one, other):
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_a_prompt_has_as_many_tokens_as_it_says():
    maker = PromptMaker(100)
    for num_tokens, num_prefix in ((1, 0), (1, 1), (50, 20), (20, 50), (100, 100)):
        prompt = maker.make(num_tokens, 3, "p", num_prefix)
        assert len(prompt) == len(list(prompt)) == num_tokens


def test_prompts_begin_alike_as_far_as_their_shared_prefix():
    maker = PromptMaker(100)
    one, other = maker.make(60, 1, "p", 32), maker.make(70, 2, "p", 48)
    assert common_length(one, other) == 32


def test_prompts_of_different_prefixes_or_of_none_share_nothing():
    maker = PromptMaker(100)
    prompts = [
        maker.make(40, 0, "p", 32),
        maker.make(40, 1, "q", 32),
        maker.make(40, 2, None, 0),
        maker.make(40, 3, None, 0),
    ]
    assert len({prompt[0] for prompt in prompts}) == len(prompts)


def test_tokens_are_in_the_vocabulary():
    prompt = PromptMaker(10).make(10, 2_000_000, "p", 5)
    assert min(prompt) >= 0 and max(prompt) < VOCAB_SIZE


def test_a_slice_is_that_of_the_list():
    prompt = PromptMaker(20).make(20, 1, "p", 7)
    assert prompt[3:12] == list(prompt)[3:12]
    assert prompt[-1] == list(prompt)[-1]


def test_a_prompt_that_is_longer_than_planned_is_an_error():
    with pytest.raises(ValueError, match="at most 10"):
        PromptMaker(10).make(11, 0, None, 0)
