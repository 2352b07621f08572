"""Tests of what can be tested without a GPU: `python3 -m unittest` in this folder, as the tests of xtask do."""

import argparse
import contextlib
import io
import json
import pathlib
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import arithmetic
import cache
import gpu_check
import peer
import place
import processes
import table


def options(**changed):
    """Those of a quick run."""
    return argparse.Namespace(**{"quick": True, "only": None, "limit": [], "cache": "none", "output": "none", **changed})


def block(step_s, losses, memory_bytes=2**20):
    return {"step_s": step_s, "losses": losses, "memory_bytes": memory_bytes}


class Arithmetic(unittest.TestCase):
    def test_resnet20_has_the_published_number_of_operations(self):
        # He et al. 2015: 40.6 million multiply-adds in a forward pass. Here: forward and two
        # backward products, without those of the stem.
        stem = 2 * 9 * 3 * 16 * 32**2
        forward = (arithmetic.step_flops(20, 1) + stem) / 3 / 2
        self.assertAlmostEqual(forward / 1e6, 40.5, delta=0.4)
        self.assertEqual(arithmetic.step_flops(20, 128), 128 * arithmetic.step_flops(20, 1))

    def test_sides_and_channels_follow_the_strides(self):
        layers = arithmetic.layers(20)
        self.assertEqual(len(layers), 19)
        self.assertEqual((layers[0], layers[7], layers[-1]), ((3, 16, 32, 32), (16, 32, 32, 16), (64, 64, 8, 8)))

    def test_half_the_width_moves_half_the_bytes(self):
        self.assertEqual(arithmetic.step_bytes(20, 8, 4), 2 * arithmetic.step_bytes(20, 8, 2))

    def test_shares_are_of_the_measured_rates_and_absent_without_them(self):
        peaks = {"copy_bytes_per_s": 1e12, "bf16_flops": 1e14}
        shares = arithmetic.shares(20, 128, "bf16", 1e-3, peaks)
        self.assertAlmostEqual(shares["of_matrix_peak"], arithmetic.step_flops(20, 128) / 1e11)
        self.assertEqual(arithmetic.shares(20, 128, "f32", 1e-3, {})["of_bandwidth"], None)

    def test_losses_that_are_no_numbers_are_infinitely_far(self):
        self.assertEqual(arithmetic.losses_off([1.0], [float("nan")]), float("inf"))
        self.assertAlmostEqual(arithmetic.losses_off([2.0, 4.0], [2.0, 4.4]), 0.1)
        self.assertIsNone(arithmetic.losses_off([], [1.0]))

    def test_a_ratio_is_to_the_best_of_the_same_job_and_width(self):
        def row(contender, dtype, speed, batch=128):
            return {"model": "resnet20", "batch": batch, "dtype": dtype, "contender": contender, "images_per_second": speed}

        rows = [row("lockstep", "f32", 50.0), row("PyTorch, eager", "f32", 100.0), row("PyTorch, graph", "f32", 200.0)]
        rows += [row("PyTorch, AMP", "bf16", 400.0), row("lockstep", "f16", 100.0), row("lockstep", "f32", 1.0, 1024)]
        arithmetic.ratios(rows)
        self.assertEqual([one["of_best_pytorch"] for one in rows], [0.25, None, None, None, 0.25, None])


    def test_rows_of_other_losses_are_in_no_ratio(self):
        def row(contender, speed, counts):
            job = {"model": "resnet20", "batch": 128, "dtype": "f32"}
            return {**job, "contender": contender, "images_per_second": speed, "counts": counts}

        rivals = [row("PyTorch, eager", 100.0, True), row("PyTorch, graph", 200.0, False)]
        ratios = [arithmetic.ratios([row("lockstep", 50.0, counts), *rivals])[0]["of_best_pytorch"] for counts in (True, False)]
        self.assertEqual(ratios, [0.5, None])


class Losses(unittest.TestCase):
    def disagrees(self, **losses):
        """Of ours, and of PyTorch's eager and graph in f32 and AMP in bf16, where they are given."""
        names = {"ours": ("lockstep", "f32"), "eager": ("PyTorch, eager, TF32", "f32"), "graph": ("PyTorch, graph, TF32", "f32")}
        names["amp"] = ("PyTorch, AMP", "bf16")
        blocks = {names[name]: [block([0.001], values)] for name, values in losses.items()}
        return gpu_check.disagrees(gpu_check.rows("resnet20", 128, blocks, {}))

    def test_a_check_is_wrong_if_pytorch_in_f32_has_nowhere_our_losses(self):
        same, other, none = [2.0, 1.0], [2.0, 1.5], [float("nan")] * 2
        self.assertTrue(self.disagrees(ours=same, eager=other, graph=other))
        self.assertTrue(self.disagrees(ours=none, eager=same))
        self.assertFalse(self.disagrees(ours=same, eager=other, graph=same))

    def test_what_was_not_compared_is_not_wrong(self):
        self.assertFalse(self.disagrees(ours=[2.0]))
        self.assertFalse(self.disagrees(eager=[2.0]))
        self.assertFalse(self.disagrees(ours=[2.0], amp=[3.0]))

    def test_wrong_losses_fail_the_check(self):
        check = gpu_check.Check(options(), None, None)
        ours, theirs = block([0.001], [2.0, 1.0]), block([0.001], [2.0, 1.5])
        rival = mock.Mock(about={"ways": ["eager, TF32"]}, ask=mock.Mock(return_value=theirs))
        with tempfile.TemporaryDirectory() as scratch, mock.patch.object(peer, "Peer", return_value=rival), \
                mock.patch.object(check, "ours", return_value=ours), contextlib.redirect_stderr(io.StringIO()):
            check.scratch = pathlib.Path(scratch)
            (check.scratch / "job-resnet44-128").touch()
            check.measure("resnet44", 128)
        self.assertTrue(check.is_wrong)
        self.assertIn(["losses, resnet44 128", "no row of PyTorch in f32 has ours"], check.result["gaps"])


class Tables(unittest.TestCase):
    def result(self):
        blocks = {
            ("lockstep", "f32"): [block([0.002], [2.0, 1.0]), block([0.004], [2.0, 1.0])],
            ("PyTorch, AMP", "bf16"): [block([0.001, 0.001], [2.0, 1.5])],
        }
        reasons = {("lockstep", "bf16"): "exit code 2: a | b", "PyTorch": "no"}
        rows = gpu_check.rows("resnet20", 128, blocks, reasons)
        peaks = {"copy_bytes_per_s": 3e12, "tf32_flops": 4e14, "bf16_flops": 8e14, "f16_flops": 8e14}
        return {"rows": rows, "peaks": peaks, "gpu": {"name": "H"}, "pytorch": "2", "trainer": "t", "gaps": [["x", "y"]]}

    def test_rows_are_medians_of_all_blocks_and_what_is_missing_says_why(self):
        result = self.result()
        gpu_check.completed(result)
        ours, pytorch, missing = result["rows"]
        self.assertAlmostEqual(ours["images_per_second"], 128 / 0.003)
        self.assertTrue(ours["counts"])
        self.assertFalse(pytorch["counts"], "losses half as far off again are another job")
        self.assertEqual(missing["gap"], "exit code 2: a | b")
        text = table.markdown(result)
        self.assertIn("gap: exit code 2: a / b", text)
        self.assertIn("does not count", text)
        self.assertIn("| x | y |", text)
        widths = {line.count("|") for line in text.splitlines() if line.startswith("| resnet20")}
        self.assertEqual(widths, {len(table.SPEED_HEADS) + 1})

    def test_verdicts_stand_beside_each_other_and_wrong_ones_say_what(self):
        def verification(dtype, verdict, passes):
            comparison = {"what": "loss", "got": "1", "tolerance": "0", "passes": passes}
            check = {"name": "golden", "verdict": verdict, "found": "", "comparisons": [comparison]}
            return {"dtype": dtype, "checks": [check]}

        text = table.checks([verification("f32", "ok", True), verification("bf16", "FAIL", False)])
        self.assertIn("| check | f32 | bf16 |", text)
        self.assertIn("| golden | ok | FAIL: loss: 1 (tolerance 0) |", text)


class Places(unittest.TestCase):
    def test_the_answer_of_nvidia_smi_is_named(self):
        facts = place.parsed_facts("NVIDIA X, 580.1, 81559 MiB, 345 MHz, 2619 MHz, 1980 MHz, 2619 MHz, 30, 70 W, 700 W\n")
        self.assertEqual((facts["name"], facts["driver_version"], facts["power.limit"]), ("NVIDIA X", "580.1", "700 W"))

    def roots(self, scratch, **files):
        """Folders of these names with empty files."""
        for name, paths in files.items():
            for path in paths:
                path = scratch / name / path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        return [scratch / name for name in files]

    def test_headers_and_compiler_of_one_root_are_preferred(self):
        headers_of_12, headers_of_13 = (["include/cuda_fp16.h", "include/crt/mma.h", f"include/{target}"] for target in ("nv/target", "cccl/nv/target"))
        compiler = ["lib/libnvrtc.so.13"]
        with tempfile.TemporaryDirectory() as scratch:
            headers, library, both = self.roots(
                pathlib.Path(scratch), headers=headers_of_12, library=compiler, both=headers_of_13 + compiler
            )
            self.assertEqual(place.compiler([headers, library, both]), (both, both / "lib/libnvrtc.so.13"))
            self.assertEqual(place.compiler([headers, library]), (headers, library / "lib/libnvrtc.so.13"))
            self.assertEqual(place.compiler([]), (None, None))

    def test_headers_without_those_that_they_include_are_none(self):
        with tempfile.TemporaryDirectory() as scratch:
            part, whole = self.roots(
                pathlib.Path(scratch),
                part=["include/cuda_fp16.h", "include/nv/target", "lib/libnvrtc.so.12"],
                whole=["include/cuda_fp16.h", "include/crt/mma.h", "include/nv/target"],
            )
            self.assertEqual(place.compiler([part]), (None, part / "lib/libnvrtc.so.12"))
            self.assertEqual(place.compiler([part, whole]), (whole, part / "lib/libnvrtc.so.12"))

    def test_a_toolkit_is_looked_at_before_wheels(self):
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            toolkit, _ = self.roots(scratch, toolkit=["include/x"], **{"nvidia/cu13": ["include/x"]})
            with mock.patch.dict(place.os.environ, {"CUDA_PATH": str(toolkit)}), mock.patch.object(place.sys, "path", [str(scratch)]):
                roots = place.cuda_roots()
            self.assertLess(roots.index(toolkit), roots.index(scratch / "nvidia/cu13"))


class Processes(unittest.TestCase):
    def test_a_program_that_takes_too_long_is_ended_with_its_children(self):
        ended = processes.run(["sh", "-c", "echo begun >&2; sleep 60 & wait"], 0.3)
        self.assertIsNone(ended.code)
        self.assertLess(ended.seconds, 10)
        self.assertIn("begun", ended.reason)

    def test_an_interrupted_check_leaves_no_program_behind(self):
        wait, waits = processes.subprocess.Popen.wait, []

        def interrupted(process, timeout=None):
            waits.append(process)
            if len(waits) == 1:
                raise KeyboardInterrupt
            return wait(process, timeout)

        with mock.patch.object(processes.subprocess.Popen, "wait", interrupted), self.assertRaises(KeyboardInterrupt):
            processes.run(["sleep", "60"], 60)
        self.assertEqual(waits[0].returncode, -9)

    def test_a_peer_whose_start_is_interrupted_is_ended(self):
        with mock.patch.object(peer.Peer, "_next", side_effect=KeyboardInterrupt), \
                mock.patch.object(processes, "end", wraps=processes.end) as end, self.assertRaises(KeyboardInterrupt):
            peer.Peer("job", 10)
        end.assert_called_once()

    def test_a_crash_keeps_its_last_lines(self):
        ended = processes.run(["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo line $i >&2; done; kill -SEGV $$"], 10)
        self.assertEqual((ended.code, ended.reason), (-11, "ended by signal 11: " + " / ".join(f"line {i}" for i in range(3, 9))))
        self.assertEqual(processes.run(["/nonexistent/program"], 1).code, 127)

    def test_a_peer_that_ends_says_why(self):
        with mock.patch.object(peer.sys, "executable", "/bin/sh"), self.assertRaises(processes.Silent) as caught:
            # A shell does not know Python's words.
            peer.Peer("job", 10)
        self.assertIn("ended: ", str(caught.exception))


class Kernels(unittest.TestCase):
    def test_what_bench_observed_is_shown_as_shares_of_the_time_in_kernels(self):
        def kernel(name, seconds):
            return {"name": name, "launches_per_step": 2.0, "seconds_per_step": seconds}

        facts = {"launches_per_step": 4.0, "seconds_per_step": 4e-3, "idle_seconds_per_step": 1e-3}
        found = arithmetic.kernels({**facts, "kernels": [kernel("b", 3e-3), kernel("a", 1e-3)]})
        self.assertEqual(found["longest"], [("b", 0.75), ("a", 0.25)])
        row = table.kernels([{"program": "lockstep f32", **found}, {"program": "PyTorch", "launches_per_step": 9, "longest": []}])
        self.assertIn("| lockstep f32 | 4 | 4.000 | 1.000 | b 75%, a 25% |", row)
        self.assertIn("| PyTorch | 9 | - | - |", row)

    def test_a_job_without_observed_kernels_is_a_gap(self):
        check = gpu_check.Check(options(), pathlib.Path("."), pathlib.Path("."))
        with contextlib.redirect_stderr(io.StringIO()):
            check.our_kernels({("lockstep", "f32"): [{"bench": {"device_kernels": None}}]})
        self.assertEqual([what for what, _ in check.result["gaps"]], ["kernels of lockstep f32", "kernels of lockstep bf16"])


class Caches(unittest.TestCase):
    def test_kernels_of_one_start_are_there_in_the_next_and_an_archive_from_elsewhere_stays_in_its_folder(self):
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            archive = scratch / "kernels.tar"
            self.assertEqual(cache.load(archive, scratch / "first"), 0)
            cache.save(scratch / "first", archive)
            self.assertFalse(archive.exists())
            (scratch / "first/cubecl").mkdir()
            (scratch / "first/cubecl/db").write_bytes(b"tuned")
            cache.save(scratch / "first", archive)
            self.assertEqual(cache.load(archive, scratch / "second"), 1)
            self.assertEqual((scratch / "second/cubecl/db").read_bytes(), b"tuned")
            with tarfile.open(archive, "w") as packed:
                packed.add(__file__, "../outside")
            with self.assertRaises(ValueError):
                cache.load(archive, scratch / "third")


class Whole(unittest.TestCase):
    PROGRAM = """#!/bin/sh
[ "$1" = --version ] && echo trainer 1 && exit 0
mkdir -p "$XDG_CACHE_HOME/cubecl" && echo "$@" >>"$XDG_CACHE_HOME/cubecl/asked"
echo no device >&2; exit 1
"""

    def run_with(self, facts, said=PROGRAM, **changed):
        with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stderr(io.StringIO()):
            scratch = pathlib.Path(scratch)
            program = scratch / "trainer"
            program.write_text(said)
            program.chmod(0o755)
            parsed = options(output=str(scratch / "result.json"), cache=str(scratch / "cache.tar"), **changed)
            check = gpu_check.Check(parsed, scratch, scratch)
            with mock.patch.object(place, "trainer", return_value=program), \
                    mock.patch.object(place, "gpu_facts", return_value=facts):
                code = gpu_check.run(check)
            check.save()
            self.has_cache = pathlib.Path(parsed.cache).exists()
            return code, json.loads(pathlib.Path(parsed.output).read_text())

    def test_without_a_gpu_there_is_a_row_and_a_code_of_its_own(self):
        code, result = self.run_with((None, "no GPU: nvidia-smi: exit code 127"))
        self.assertEqual((code, result["trainer"]), (gpu_check.NO_GPU, "trainer 1"))
        self.assertEqual(result["gaps"], [["all", "no GPU: nvidia-smi: exit code 127"]])
        self.assertIn("| all | no GPU", table.markdown(result))

    def test_parts_that_break_off_are_rows_and_the_others_go_on(self):
        code, result = self.run_with(({"name": "G"}, None))
        self.assertEqual(code, 1)
        missing = dict(result["gaps"])
        self.assertIn("no device", missing["verify f32"])
        self.assertEqual([row["gap"] for row in result["rows"]], ["exit code 1: no device"] * 6)
        self.assertEqual(missing["PyTorch, resnet20 1024"], "no job was written")
        self.assertTrue(self.has_cache)

    def test_parts_run_in_order_and_the_file_is_whole_after_each(self):
        saves = []
        save = gpu_check.Check.save

        def saved(check):
            save(check)
            saves.append(len(json.loads(pathlib.Path(check.options.output).read_text())["commands"]))

        with mock.patch.object(gpu_check.Check, "save", saved), mock.patch.object(gpu_check.Check, "peaks"):
            _, result = self.run_with(({"name": "G"}, None), quick=False)
        commands = [words[words.index("--") + 1 :] if "--" in words else words for words in result["commands"][1:]]
        found = []
        for words in commands:
            keys = ("--dtype", "--only", "--model", "--batch-size-per-rank", "--reduction")
            given = [words[words.index(key) + 1] for key in keys if key in words]
            found += [given] if given not in found else []
        steps, formats = "known-answer,golden,ten-steps", ("f32", "bf16", "f16")
        expected = [["f32", steps], ["bf16", steps + ",ranks,checkpoints"], ["f16", steps + ",ranks,checkpoints"], ["bf16", "learning"]]
        jobs = (("resnet20", "128"), ("resnet20", "1024"), ("resnet44", "128"), ("resnet44", "1024"), ("resnet50", "64"))
        expected += [[dtype, *job] for job in jobs for dtype in formats]
        expected += [["f32", "resnet20", "128", reduction] for reduction in ("mpi", "nccl")]
        self.assertEqual(found, [*expected, ["f32", "ranks,nccl,checkpoints,memory"]])
        self.assertEqual(len(saves), len(gpu_check.PARTS) + 1)
        self.assertEqual(saves, sorted(saves))

    def test_a_part_without_time_is_a_row_and_starts_nothing(self):
        limits = [gpu_check.limit("deadline=10")]
        code, result = self.run_with(({"name": "G"}, None), limit=limits)
        self.assertEqual((code, dict(result["gaps"])["f32"]), (0, "no time left"))
        self.assertEqual(result["commands"], [["--version"]])

    def test_sums_of_two_processes_that_differ_are_wrong(self):
        for losses, is_wrong in (([1.0, 1.0], False), ([1.0, 2.0], True)):
            check = gpu_check.Check(options(), None, None)
            answers = [processes.Ended(0, json.dumps({"images_per_second": 1.0, "losses": [loss]}), "", 1.0) for loss in losses]
            with mock.patch.object(check, "trainer", side_effect=answers), contextlib.redirect_stderr(io.StringIO()):
                check.pair()
            self.assertEqual((check.is_wrong, len(check.result["pairs"])), (is_wrong, 2))

    def test_checks_of_one_format_from_two_parts_are_one_column(self):
        check = gpu_check.Check(options(), pathlib.Path("."), None)

        def answer(words, *_):
            verification = {"dtype": "bf16", "verdict": "ok", "checks": [{"name": words[words.index("--only") + 1]}]}
            pathlib.Path(words[words.index("--output") + 1]).write_text(json.dumps(verification))
            return processes.Ended(0, "", "", 1.0)

        with tempfile.TemporaryDirectory() as scratch, mock.patch.object(check, "trainer", answer):
            check.scratch = pathlib.Path(scratch)
            for part in ("bf16", "learning"):
                check.verify(part, *gpu_check.VERIFIED[part])
        (verification,) = check.result["verify"]
        self.assertEqual([one["name"] for one in verification["checks"]][1], "learning")

    def test_programs_that_end_well_without_an_answer_are_rows(self):
        for answer in ("", "done", "[1]", "{}"):
            silent = processes.Ended(0, answer, "", 1.0)
            with mock.patch.object(processes, "run", return_value=silent):
                facts = place.gpu_facts()
                with contextlib.redirect_stderr(io.StringIO()):
                    check = gpu_check.Check(options(), pathlib.Path("."), pathlib.Path("."))
                    check.peaks()
            self.assertEqual(facts == (None, "no GPU: nvidia-smi: exit code 0: it said nothing"), not answer)
            (what, why), = check.result["gaps"]
            self.assertEqual(what, "the machine's own rates")
            self.assertIn(f"got {answer!r}", why)
            _, result = self.run_with(({"name": "G"}, None), f"#!/bin/sh\necho '{answer}'\n", only="resnet20-128")
            self.assertEqual({f"got {answer!r}" in row["gap"] for row in result["rows"]}, {True})

    def test_one_part_alone_asks_nothing_of_the_others(self):
        _, result = self.run_with(({"name": "G"}, None), only="resnet44-1024")
        self.assertEqual({words[0] for words in result["commands"]}, {"--version", "bench"})
        self.assertEqual({row["model"] for row in result["rows"]}, {"resnet44"})
        self.assertEqual(result["verify"], [])

    def test_limits_are_those_given_and_unknown_parts_are_refused(self):
        self.assertEqual(gpu_check.limits(options())["verify"], 60)
        given = gpu_check.limits(options(quick=False, limit=[gpu_check.limit("verify=500"), gpu_check.limit("deadline=1500")]))
        self.assertEqual([given[part] for part in ("verify", "deadline", "bench")], [500, 1500, 90])
        for text in ("verify", "verify=x", "other=3"):
            with self.assertRaises(argparse.ArgumentTypeError):
                gpu_check.limit(text)
        with self.assertRaises(argparse.ArgumentTypeError):
            gpu_check.parts("f32,cool")


if __name__ == "__main__":
    unittest.main()
