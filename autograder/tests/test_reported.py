"""What people who run such assignments have reported elsewhere, class by class, and the test of ours that would fail on it.

Not here, since they need a GPU: numbers that differ between devices, an assertion on the device that fails every test after it, a
fork after CUDA has begun. No test of ours runs on one.
"""

import re

import pytest

from autograder.tests.faults import FAULTS
from autograder.tests.handed_in import ROOT

REPORTED = {
    # What students see on their own machine
    "other results at home than on the server": "test_every_dependency_is_pinned_and_no_pin_names_a_build",
    "uninitialised memory that happens to be right": "fault: an answer of memory that nobody has written",
    "'all tests passed', and points are missing later": "test_all_done_does_not_sound_like_full_marks",
    "a lock file without wheels for a platform": "test_no_suitable_python_says_what_was_found",
    "tests that cannot be collected on Windows": "test_tests_run_in_a_fresh_process_where_forking_is_not_safe",
    "a packed submission that lacks a file": "test_a_missing_part_is_said_loudly_and_the_rest_is_packed",
    "a file left out for what it is called": "test_helper_files_go_in_wherever_they_lie_and_whatever_they_are_called",
    "untouched starter code passes": "test_stubs_get_no_point_and_are_called_not_started",
    "a rate limit that a regrade runs into": "test_submissions_in_the_window_are_counted",
    # Verdicts
    "zeros pass": "test_tolerance_scales_with_what_is_expected",
    "one loose tolerance for everything": "test_each_leaf_has_a_scale_of_its_own",
    "shapes are broadcast": "test_shapes_are_not_broadcast",
    "AdamW variants within the tolerance": "test_adamw_follows_the_algorithm_line_by_line",
    "memory judged by counting Tensor objects": "test_train_keeps_memory_flat",
    "no result is read as a pass": "test_only_what_passed_has_points",
    "seeds that differ from run to run": "test_two_gradings_differ_in_their_times_only",
    "answers matched as text": "test_types_agree_exactly",
    "a hidden test that never touches student code": "test_every_known_mistake_is_a_mistake_in_the_reference_as_it_is",
    "a wrong solution gets full marks": "test_a_wrong_solution_loses_the_rows_about_its_mistake",
    "a right solution written otherwise is refused": "test_a_right_solution_gets_every_row",
    "a row that vanishes with its points": "test_zeros_stand_there_before_student_code_runs",
    "a skip that a student raises counts as a pass": "fault: skips the test",
    "a skip of pytest's counts as a pass": "fault: skips the test with pytest",
    "a test of ours that skips itself": "test_a_fault_of_ours_is_no_grade",
    "totals that differ by rounding": "test_results_of_the_reference_are_full_marks",
    "NaN equals NaN": "test_nan_and_infinity_are_refused_even_where_they_are_expected",
    # The grader's strength
    "no results.json after an error": "test_a_fault_of_ours_is_no_grade",
    "one endless loop costs everybody's grade": "fault: while True",
    "an enormous result": "fault: 200 MB of output",
    "printing without end": "fault: prints for ever",
    "running out of memory looks like our fault": "fault: 50 GB of tensor",
    "native code ignores the time limit": "fault: endless C call",
    "a time limit that can be swallowed": "fault: except BaseException: continue around a loop",
    "a student's conftest.py": "test_nothing_else_of_a_submission_is_loaded",
    "threads after a fork hang": "test_children_may_use_two_threads",
    "sys.exit at import": "fault: sys.exit() at import",
    "os._exit in a function": "fault: os._exit(0)",
    "a regrade that crashes wipes the mark": "test_a_path_without_a_submission_is_refused",
    "limits of address space that break PyTorch": "test_what_the_kernel_says_of_a_child",
    "a fixture that fails": "test_a_fault_of_ours_is_no_grade",
    # Throughput
    "the import of PyTorch in every process": "test_an_optimizer_does_not_bring_the_compiler",
    "one submission blocks the queue": "fault: one problem's rows wait for one endless loop only once",
    "absurd limits in the settings": "test_a_mistake_is_named",
    "a dead worker costs the class": "test_a_dead_worker_costs_only_its_own_submission_which_the_next_run_tries_again",
    # Security
    "reading the tests, opening sockets": "test_an_attack_is_refused_by_each_of_its_walls",
    "a hook that rewrites reports": "test_no_file_of_the_submission_is_imported_by_the_grader",
    "judged by what is printed": "fault: closes and replaces its output",
    "the expected value in a caller's frame": "fault: reads the expected value from the callers' frames",
    "the expected value by the garbage collector": "fault: asks the garbage collector for the expected value",
    "the reference imported": "fault: imports the reference",
    "results rewritten at exit": "fault: forges the results at exit",
    "a tensor that equals everything": "test_a_tensor_that_equals_everything_is_refused",
    # Staff
    "only a table of totals": "test_every_submission_has_a_results_file_that_says_what_it_is",
    "a line of dots splits the export": "test_a_line_of_dots_does_not_end_the_file",
    "a grader edited in the middle of the term": "test_the_version_changes_with_whatever_decides_about_a_grade",
    "grades of two versions mixed": "test_grades_of_another_version_of_the_grader_are_not_mixed",
    "points that do not add up": "test_what_cannot_grade_is_not_packed",
    # The handout
    "numbers in the handout that are wrong": "test_no_large_number_is_typed_by_hand",
    "signatures in the handout that are wrong": "test_signatures_are_those_of_the_stubs",
    "examples that do not run": "test_examples_print_what_the_handout_says",
    "starter code with mistakes": "test_student_folder_is_what_the_reference_gives",
    # The subject
    "FLOPs that FlopCounterMode does not see": "test_count_flops_counts_nothing_else",
    "multiply-add as one or two": "test_matmul_flops_are_those_that_pytorch_counts",
    "backward is not always twice forward": "test_deep_linear_flops_backward_computes_what_is_wanted",
    "6 N per token": "test_training_step_flops_are_six_a_token_and_parameter",
    "the sparse peak for the dense": "test_promised_flop_per_sec_is_the_dense_peak",
    "MFU": "test_mfu_is_the_part_of_the_promise_that_is_kept",
    "bytes per parameter": "test_bytes_per_parameter_are_those_of_real_storages",
    "state of the wrong unit": "test_optimizer_state_bytes_is_what_state_holds",
    "the order inside brackets": "test_split_heads_puts_every_number_in_its_place",
    "a view or a copy": "test_same_storage_of_views_and_copies",
    "annotations that nobody enforces": "test_annotations_are_enforced",
    "eps inside or outside the root": "test_adagrad_adds_eps_to_the_root",
    "autocast": "test_train_step_autocasts_and_keeps_float32_weights",
    "memory that exists and memory that is reserved": "test_training_memory_measures_what_exists",
    "view after transpose": "test_view_strides_of_permuted_sliced_and_expanded_tensors",
}  # fmt: skip


@pytest.fixture(scope="module")
def tests() -> set[str]:
    """The names of all tests of ours, hidden rows too."""
    files = [path for folder in ("tests", "hidden") for path in (ROOT / "autograder" / folder).glob("test_*.py")]
    return {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)}


@pytest.mark.parametrize("reported", REPORTED)
def test_what_was_reported_elsewhere_has_a_test_here(reported, tests):
    name = REPORTED[reported]
    if name.startswith("fault: "):
        assert name.removeprefix("fault: ") in {fault.name for fault in FAULTS}
    else:
        assert name in tests
