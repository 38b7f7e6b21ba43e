"""The list of CUDA tests is made of what pytest wrote."""

from __future__ import annotations

from pathlib import Path

from tests.cuda_device.coverage import table

_RUN = """<testsuites><testsuite name="pytest">
<testcase classname="tests.gpu.test_methods" name="test_it[a]"/>
<testcase classname="tests.gpu.test_methods" name="test_it[b]"/>
<testcase classname="tests.gpu.test_methods" name="test_it[c]"><skipped message="no kernels of Triton's"/></testcase>
<testcase classname="tests.gpu.test_rates" name="test_rates"><failure message="too slow&#10;much"/></testcase>
<testcase classname="tests.cuda_device.test_values_of_ranks" name="test_ranks"/>
</testsuite></testsuites>"""


def test_each_test_is_listed_with_how_it_ran_and_why_it_did_not(tmp_path: Path) -> None:
    run = tmp_path / "run.xml"
    run.write_text(_RUN)
    methods = "tests.gpu.test_methods::test_it"
    assert table([run], []).splitlines()[2:] == [
        "| tests.cuda_device.test_values_of_ranks::test_ranks | 1 | with values |  |",
        f"| {methods} | 1 | not at all | no kernels of Triton's |",
        f"| {methods} | 2 | with values |  |",
        "| tests.gpu.test_rates::test_rates | 1 | failed | too slow |",
    ]
    plain = table([], [run])
    assert f"| {methods} | 2 | without values |  |" in plain
    assert "test_ranks | 1 | with values" in plain, "it runs commands on machines that compute"
