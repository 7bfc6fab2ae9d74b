"""What went wrong for users of other gates, row by row, and what proves here that it does not: a scenario or a test, by name.

A name that is no longer there fails. Human approval is in `scenarios/pains-approvals.yaml`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent

NAMES, BUDGETS, INGRESS = (f"scenarios/pains-{name}.yaml" for name in ("names", "budgets", "ingress"))

PROOFS: dict[str, tuple[tuple[str, str], ...]] = {
    # --- names, paths, URLs ---
    "`/tmp/../etc/shadow` under a raw prefix": ((NAMES, "a path is compared in its normal form"),),
    "`/project-evil` for `/project`": ((NAMES, "the boundary of a folder is a component"),),
    "the rule looks at `pattern`, the target sits in `path`": (
        (NAMES, "every declared argument is looked at, and what a tool joins is joined"),
    ),
    "a path nested in an array; a tool with a scope and no declared path": (
        (NAMES, "a path nested in an array is looked at"),
        ("core/test_check.py", "test_strict_resources_makes_undeclared_arguments_an_error"),
    ),
    "every string scanned": ((NAMES, "text that is declared to be no resource is none"),),
    "a recursive tool above a forbidden descendant": (
        (NAMES, "a recursive tool above a forbidden name waits for people where the policy says so, and what names it is denied"),
    ),
    "a symbolic link leads out of the scope": (
        ("scenarios/links.yaml", "a link inside the scope that leads out is outside, also where the leaf does not exist"),
        ("shell/test_links.py", "test_links_are_followed_recorded_and_replayed"),
    ),
    "deny `*` does not match `admin/delete`": ((NAMES, "a star crosses every character of a tool name"),),
    "homoglyph, full-width and bidi names": ((NAMES, "names that look like trusted ones are refused"),),
    "deny `web_search`, the agent calls `bing_search`": ((NAMES, "what no list allows is denied, whatever else is forbidden"),),
    "user-info and a backslash before the host": ((NAMES, "user-info and other ways to another host"),),
    "the metadata address in another spelling": (
        (NAMES, "the metadata address in every spelling, and the addresses that mean this host"),
        ("core/scope/test_oracle.py", "test_the_scope_allows_what_the_oracle_allows"),
    ),
    "a rule names a fact that its stage does not have": (
        ("core/stages/test_contracts.py", "test_a_mistake_is_a_load_error_with_its_place"),
    ),
    "a deny-only policy": (
        (NAMES, "what no list allows is denied, whatever else is forbidden"),
        ("core/test_check.py", "test_each_finding_with_its_line"),
    ),
    "told to read first what cannot be read": (("core/test_check.py", "test_each_finding_with_its_line"),),
    # --- decisions that fail open ---
    "a stage says deny and sets an error": (("core/test_fail_open.py", "test_a_stage_that_answers_what_is_no_finding_denies"),),
    "a type error discards the forbidding rule": (("core/test_fail_open.py", "test_a_type_error_in_a_rule_denies"),),
    "an engine out of reach is an abstention": (
        ("shell/test_semantic.py", "test_where_nobody_judges_the_policy_says_what_happens"),
    ),
    "the parser drops conditions": (
        ("core/test_fail_open.py", "test_a_misspelt_key_is_a_load_error_wherever_it_stands"),
        ("core/test_policy_loads.py", "test_a_mistake_is_a_load_error_with_its_line_and_its_text"),
    ),
    "no policies loaded: everything allowed": (
        ("core/test_fail_open.py", "test_an_empty_policy_denies_everything"),
        ("shell/test_empty_policy.py", "test_an_empty_policy_denies_everybody_and_health_shows_that_there_are_no_agents"),
    ),
    "one bad file skipped, a weaker set swapped in": (
        ("core/test_fail_open.py", "test_one_broken_file_breaks_the_folder"),
        ("shell/test_reload.py", "test_a_broken_policy_keeps_the_old_one_and_health_says_why"),
    ),
    "a host that does not know the gate's word": (
        ("client/test_unknown_words.py", "test_every_word_has_its_exception_but_allow_runs"),
        ("client/adapters/test_claude_code.py", "test_a_word_that_the_host_does_not_know_is_never_said"),
    ),
    "a key parsed and never used": (("core/test_policy_keys.py", "test_every_key_has_a_case_or_is_proven_elsewhere"),),
    "an evaluation error leaves no event": (
        ("core/test_fail_open.py", "test_a_stage_that_raises_denies_and_says_so_in_the_log"),
    ),
    "contradictory settings, said in a log line only": (
        ("core/test_fail_open.py", "test_contradictory_settings_are_load_errors"),
    ),
    # --- budgets, phases, order ---
    "limit 6, eight parallel calls": (
        (BUDGETS, "of eight parallel calls under a limit of six exactly six are admitted"),
        ("shell/test_delivery.py", "test_a_hundred_connections_admit_what_one_would"),
    ),
    "parallel calls all see the old sum": ((BUDGETS, "parallel calls do not all see the old sum"),),
    "denied or waiting calls burn the budget": ((BUDGETS, "what is denied or waits burns no budget"),),
    "executions counted after the tool ran": ((BUDGETS, "a call counts from its admission, not from its outcome"),),
    "a new run id resets the budget": (
        (BUDGETS, "a run that the agent names itself resets no budget where an operator opens them"),
        (BUDGETS, "nor where the budget is the thread's"),
        (BUDGETS, "a child spends its parent's budget"),
        ("shell/test_open_runs.py", "test_the_third_open_run_is_denied_whichever_its_thread"),
    ),
    "sub-agents report the parent's id": ((BUDGETS, "two agents cannot be one run"),),
    "read-before-write: together, by another tool, stale": (
        (BUDGETS, "a write that comes with its read is not admitted before the read has succeeded"),
        (BUDGETS, "a read is stale once somebody else has written, whoever and with whatever tool"),
    ),
    "a partial read blesses a full overwrite": ((BUDGETS, "a partial read blesses no write"),),
    "fan-out starts, the budget ends half way": (
        ("core/test_foresee.py", "test_a_plan_of_five_with_three_left"),
        ("client/test_client.py", "test_what_is_left_can_be_asked_without_taking_anything"),
    ),
    "an order split into small ones": ((BUDGETS, "an order that is split into small ones meets the barrier on their sum"),),
    "`0.1 + 0.2 <= 0.3`": (
        (BUDGETS, "0.10 and 0.20 are 0.30, and a limit is inclusive"),
        (BUDGETS, "ten times a tenth is one"),
    ),
    # --- JSON and ingress ---
    "NaN and infinities": (
        (INGRESS, "NaN and what overflows are refused, with an answer"),
        ("shell/test_fuzz.py", "test_a_deadly_input_is_refused_with_its_reason"),
    ),
    "a payload over the server's limit shows up as a timeout": (
        ("client/test_client.py", "test_a_payload_that_is_too_large_is_refused_before_it_is_sent"),
        ("shell/test_fuzz.py", "test_a_payload_of_exactly_the_limit_is_decided_and_one_byte_more_is_not"),
        ("shell/test_edges.py", "test_the_largest_message_gets_its_verdict_whatever_it_is"),
        ("shell/test_limits.py", "test_the_limits_of_the_policy_hold_of_messages"),
    ),
    "the same key, another payload": (
        (INGRESS, "the same id with another payload never gets the first one's answer"),
        ("shell/test_delivery.py", "test_the_same_id_with_other_arguments_never_gets_the_first_ones_answer"),
    ),
    "a crafted id collides with storage keys": (
        (INGRESS, "an id that is none is refused before it becomes a key"),
        ("shell/test_fuzz.py", "test_an_id_outside_the_contract_is_refused_and_does_no_harm"),
    ),
    # --- event log, replay, audit ---
    "two writers fork the chain": (
        ("shell/log/test_every_backend.py", "test_of_two_writers_one_writes_and_the_next_has_a_larger_epoch"),
        ("shell/log/test_every_backend.py", "test_a_hundred_concurrent_appends_verify"),
    ),
    "the hash covers what the store does not keep": (
        ("shell/log/test_every_backend.py", "test_what_was_appended_is_read_in_order_by_everybody_and_later"),
    ),
    "the body can be edited unseen": (
        ("core/test_chain.py", "test_any_changed_byte_of_a_body_is_found_where_it_is"),
        ("shell/log/test_sqlite.py", "test_a_changed_field_is_found_at_its_position"),
    ),
    "arguments written verbatim": (
        ("core/redaction/test_records.py", "test_a_call_is_decided_as_it_is_and_recorded_without_its_secrets"),
        ("core/redaction/test_detectors.py", "test_found"),
    ),
    "decision logs dropped under load": (
        ("shell/log/test_sqlite.py", "test_a_full_disk_is_unavailable_and_appends_go_on_when_there_is_room"),
        ("shell/test_crash.py", "test_a_daemon_killed_at_a_fault_point_loses_and_changes_nothing"),
    ),
    "no verdict names its policy": (
        ("shell/test_edges.py", "test_a_reload_in_the_middle_of_many_messages_leaves_no_call_without_its_one_verdict"),
    ),
    "a replay under a new policy pretends where the input was redacted": (
        ("core/test_whatif.py", "test_what_was_redacted_is_not_replayable_where_a_rule_reads_it_and_only_there"),
    ),
    "replay in another order, other ids after an upgrade": (("core/test_replay.py", "test_a_log_replays_byte_for_byte"),),
    "a golden log in the repository": (("core/test_replay.py", "test_frozen_histories_replay"),),
    "rate-limit events with empty fields": ((BUDGETS, "a call counts from its admission, not from its outcome"),),
    "long histories slow down, without warning": (
        ("core/test_replay.py", "test_snapshot_and_tail_are_the_whole_fold"),
        ("shell/test_long_threads.py", "test_of_a_thread_that_grows_long_people_are_warned"),
    ),
    "shadow verdicts mistaken for real ones": (
        ("scenarios/whole.yaml", "observed"),
        ("scenarios/whole.yaml", "what is observed does not end the pipeline"),
        ("scenarios/findings.yaml", "what is observed moves and says nothing, neither of transitions nor of warnings"),
    ),
    # --- NATS and time ---
    "work slower than the acknowledgement was done twice": (
        ("shell/test_delivery.py", "test_the_same_intent_five_times_is_one_record_and_five_equal_answers"),
        ("shell/test_delivery.py", "test_an_input_whose_acknowledgement_was_lost_is_answered_from_the_log"),
    ),
    "duplicates with a delivery count of one": (
        ("shell/test_delivery.py", "test_a_message_id_that_the_server_has_seen_costs_no_second_look"),
    ),
    "a late acknowledgement of another worker": (
        ("shell/log/test_every_backend.py", "test_a_late_write_under_a_stale_fence_is_refused"),
        ("shell/test_worker.py", "test_a_worker_that_is_gone_is_replaced_in_seconds_and_never_decides_again"),
    ),
    "a crash between append, publish and acknowledge": (
        ("shell/test_crash.py", "test_what_was_said_once_is_answered_although_the_daemon_dies"),
        ("shell/test_edges.py", "test_an_approval_is_used_once_although_the_daemon_dies_of_it"),
    ),
    "nobody listens when the ticket expires": (
        ("shell/test_delivery.py", "test_a_ticket_that_expired_while_no_daemon_ran_is_denied_once_at_the_start"),
        ("shell/test_crash.py", "test_what_a_timer_decided_just_before_the_daemon_died_is_said_at_the_next_start"),
    ),
    "hooks are not called for other paths": (
        (INGRESS, "what was executed without an allow verdict is recorded, and fails the run where the policy says so"),
    ),
    "the deny arrives after the tool ran": ((INGRESS, "an outcome that comes before its verdict is of an ungated execution"),),
}


@pytest.mark.parametrize("row", PROOFS)
def test_a_row_is_proven_by_name(row: str) -> None:
    for file, name in PROOFS[row]:
        text = (HERE / file).read_text()
        if file.endswith(".yaml"):
            assert name in [scenario["name"] for scenario in yaml.safe_load(text)["scenarios"]], (file, name)
        else:
            assert re.search(rf"^ *(async )?def {name}\(", text, re.M), (file, name)
