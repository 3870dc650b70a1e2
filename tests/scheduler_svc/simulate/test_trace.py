import pytest

from pagewire.kit.errors import InvalidRequestError
from scheduler_svc.simulate.trace import TraceRequest, read_trace

HEADER = (
    "arrival_time_s,num_prompt_tokens,num_output_tokens,"
    "shared_prefix_id,num_shared_prefix_tokens,priority\n"
)


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_json_lines_and_csv_say_the_same(tmp_path):
    in_json = write(
        tmp_path,
        "trace.jsonl",
        '{"arrival_time_s": 0.5, "num_prompt_tokens": 10, "num_output_tokens": 3}\n\n'
        '{"arrival_time_s": 1, "num_prompt_tokens": 20, "num_output_tokens": 4,'
        ' "shared_prefix_id": "p", "num_shared_prefix_tokens": 16, "priority": -1}\n',
    )
    in_csv = write(tmp_path, "trace.csv", HEADER + "0.5,10,3,,,\n1,20,4,p,16,-1\n")
    expected = [TraceRequest(0.5, 10, 3), TraceRequest(1.0, 20, 4, "p", 16, -1)]
    assert list(read_trace(in_json)) == list(read_trace(in_csv)) == expected


def test_a_trace_is_read_as_it_is_replayed(tmp_path):
    good = '{"arrival_time_s": 0, "num_prompt_tokens": 1, "num_output_tokens": 1}\n'
    requests = read_trace(write(tmp_path, "trace.jsonl", good + "nonsense\n"))
    assert next(requests).num_prompt_tokens == 1
    with pytest.raises(InvalidRequestError):
        next(requests)


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ("[]", "line 1 is no JSON object"),
        ('{"arrival_time_s": 0, "num_prompt_tokens": 1}', "num_output_tokens is missing"),
        (
            '{"arrival_time_s": 0, "num_prompt_tokens": 0, "num_output_tokens": 1}',
            "num_prompt_tokens must be 1",
        ),
        (
            '{"arrival_time_s": NaN, "num_prompt_tokens": 1, "num_output_tokens": 1}',
            "arrival_time_s must be a finite number",
        ),
        ('{"prompt": 1}', "unknown column 'prompt'"),
        ('{"arrival_time_s": {}, "num_prompt_tokens": 1, "num_output_tokens": 1}', "float"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path, row, rule):
    with pytest.raises(InvalidRequestError, match=rule):
        list(read_trace(write(tmp_path, "trace.jsonl", row + "\n")))


def test_arrivals_must_ascend(tmp_path):
    path = write(tmp_path, "trace.csv", HEADER + "2,1,1,,,\n1,1,1,,,\n")
    with pytest.raises(InvalidRequestError, match="line 3: arrival_time_s is earlier"):
        list(read_trace(path))


def test_a_trace_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InvalidRequestError, match="No such file"):
        list(read_trace(tmp_path / "trace.jsonl"))
