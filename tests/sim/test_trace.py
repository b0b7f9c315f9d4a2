"""Traces as people have them: this one's columns, Azure's, Mooncake's; and what is said of a wrong one."""

from __future__ import annotations

import pytest

from gateway.simulator.trace import TraceError, read
from gateway.simulator.workload import Arrival

TWO = (Arrival(0.0, 374, 44), Arrival(4.25, 396, 109))


MOONCAKE_TWO = """{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [1, 2]}

{"timestamp": 4250, "input_length": 396, "output_length": 109}
"""


@pytest.mark.parametrize(
    "text",
    [
        "arrival_s,prompt_tokens,output_tokens\n0.000,374,44\n4.25,396,109\n",
        "output_tokens , Arrival,x,input_tokens\n109,104.25,,396\n44,100,,374\n",
        "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:58.5,374,44\n2023-11-17 00:00:02.75,396,109\n",
        "timestamp,input_length,output_length\n1000,374,44\n5250,396,109\n",
        MOONCAKE_TWO,
        'arrival_s,"prompt_tokens",completion_tokens\r\n0,374,44\r\n\r\n"4.25",396,109\r\n',
    ],
    ids=["own", "any order", "azure", "mooncake csv", "mooncake", "quoted"],
)
def test_the_layouts_are_read_in_order_of_arrival_from_zero_on(text: str) -> None:
    assert read(text.splitlines(keepends=True), "trace.csv") == TWO


HEAD = "arrival_s,prompt_tokens,output_tokens\n"
TOKENS = "expected a whole number of tokens, {} to 10000000"
INSTANT = "expected a number, or a date such as 2023-11-16 18:15:46.68"
KNOWN = "expected one of arrival_s, arrival, arrival_ms, timestamp among them"
MOONCAKE = '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": no requests in it, a line for each expected"),
        (HEAD, ": no requests in it, a line for each expected"),
        ("when,prompt_tokens,x\n1,2,3\n", f": got columns when, prompt_tokens, x, {KNOWN}"),
        (HEAD + "0,1,1\n1,2.5,3\n", f", line 3, column prompt_tokens: got '2.5', {TOKENS.format(1)}"),
        (HEAD + "0,0,1\n", f", line 2, column prompt_tokens: got '0', {TOKENS.format(1)}"),
        (HEAD + "0,1,-1\n", f", line 2, column output_tokens: got '-1', {TOKENS.format(0)}"),
        (HEAD + "\nsoon,1,1\n", f", line 3, column arrival_s: got 'soon', {INSTANT}"),
        (HEAD + "nan,1,1\n", f", line 2, column arrival_s: got 'nan', {INSTANT}"),
        (HEAD + "0,1\n", ", line 2: got 2 columns, expected 3 as in the head"),
        (MOONCAKE + "[1]\n", ", line 2: got '[1]', expected a JSON object"),
        (MOONCAKE.replace(" 1}", " null}"), f", line 1, column output_length: got 'None', {TOKENS.format(0)}"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_column(text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(text.splitlines(keepends=True), "trace.csv")
    assert str(caught.value) == f"trace.csv{message}"
