//! Graphs of steps as text and as Mermaid.

use oarlock_view::{FlowGraph, FlowView, graph_mermaid, graph_text};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr as _;

use crate::flows::{cycle, daemon, five, sixty};
use crate::jobs::at;

fn text(flow: &Value, width: usize) -> String {
    let view = FlowView::new(flow, []);
    graph_text(&FlowGraph::new(&view), width, at("10:02:00"))
}

fn mermaid(flow: &Value) -> String {
    let view = FlowView::new(flow, []);
    graph_mermaid(&FlowGraph::new(&view), at("10:02:00"))
}

/// Returns a flow of `count` steps, each after the previous step.
fn chain(count: usize) -> Value {
    let step = |at: usize| json!({"name": format!("s{at}"), "dependencies": at.checked_sub(1).map(|on| vec![format!("s{on}")])});
    json!({"kind": "JobFlow", "metadata": {"name": "chain"}, "spec": {"flows": (0..count).map(step).collect::<Vec<_>>()}})
}

#[test]
fn a_flow_is_drawn_below_what_it_depends_on_with_states_retries_and_durations() {
    let expected = "\
JobFlow team-a/demo  Running  2/5  2m

╭────── ✓ 1  Succeed  12s
│ ╭──── ✓ 4  Succeed  45s
├─│─┬─> ● 2  Running  1m30s   retry 1
╰─│─┼─> ○ 3  Waiting
  ╰─┴─> ○ 5  Waiting

● Running  ○ Waiting  ✓ Succeed
";
    assert_eq!(text(&five(), 100), expected);
}

#[test]
fn an_edge_that_waits_for_something_else_than_success_says_so_and_finally_is_in_a_box() {
    let mut flow = five();
    flow["spec"]["flows"][1]["when"] = json!("failure");
    flow["spec"]["flows"][4]["when"] = json!("finished");
    flow["spec"]["finally"] = json!([{"name": "clean"}, {"name": "tell", "when": "failure"}]);
    let expected = "\
JobFlow team-a/demo  Running  2/5  2m

╭─────────────── ✓ 1      Succeed  12s
│ ╭───────────── ✓ 4      Succeed  45s
├─│─┬─failure──> ● 2      Running  1m30s   retry 1
╰─│─┼──────────> ○ 3      Waiting
  ╰─┴─finished─> ○ 5      Waiting

╭─ finally ───────────────────────────────╮
│ ○ clean  Waiting                        │
│ ○ tell   Waiting          when: failure │
╰─────────────────────────────────────────╯

● Running  ○ Waiting  ✓ Succeed
";
    assert_eq!(text(&flow, 100), expected);
}

#[test]
fn a_cycle_is_spelled_and_marked_in_every_drawing() {
    let drawn = text(&cycle(), 100);
    assert!(drawn.contains("\ncycle: a -> c -> b -> a\n"), "{drawn}");
    for (step, on) in [("a", "c"), ("b", "a"), ("c", "b")] {
        let line = drawn.lines().find(|line| line.contains(&format!("○ {step} "))).unwrap();
        assert!(line.ends_with(&format!("in a cycle, after {on}")), "{line}");
    }
    assert!(!drawn.contains("root  Waiting          in"), "{drawn}");
    let drawn = mermaid(&cycle());
    assert!(drawn.contains("%% cycle: a -#62; c") && drawn.contains("linkStyle 0,1,3 stroke:#d1242f"), "{drawn}");
}

#[test]
fn unknown_dependencies_and_names_given_twice_are_told() {
    let mut flow = five();
    flow["spec"]["flows"][0]["dependencies"] = json!(["job9", "job9"]);
    flow["spec"]["flows"][3]["name"] = json!("1");
    let drawn = text(&flow, 100);
    assert!(drawn.contains("step 1 depends on job9, which is no step of flows\n"), "{drawn}");
    assert!(drawn.contains("two steps are named 1\n"), "{drawn}");
    assert_eq!(drawn.matches("job9").count(), 1, "{drawn}");
}

#[test]
fn a_drawing_of_any_flow_fits_a_hundred_columns() {
    let mut long = five();
    long["status"]["steps"][1]["message"] = json!("word ".repeat(60));
    long["metadata"]["name"] = json!("n".repeat(200));
    for flow in [five(), sixty(), cycle(), daemon(), chain(500), long] {
        for width in [20, 60, 100] {
            let drawn = text(&flow, width);
            assert!(drawn.lines().all(|line| line.width() <= width.max(26)), "{width}: {drawn}");
        }
    }
}

#[test]
fn where_lanes_would_take_too_much_room_the_dependencies_stand_behind_each_step() {
    let drawn = text(&sixty(), 100);
    assert!(drawn.contains("  2 ✓ step-06-of-the-nightly-import  Succeed"), "{drawn}");
    assert!(drawn.contains("after step-00-of-the-nightly-import") && drawn.contains("on failure of step-"), "{drawn}");
    assert!(drawn.contains("after any end of step-"), "{drawn}");
}

#[test]
fn a_chain_of_five_hundred_steps_is_drawn_in_every_format() {
    let flow = chain(500);
    assert_eq!(text(&flow, 100).lines().filter(|line| line.contains("○ s")).count(), 500);
    assert_eq!(mermaid(&flow).matches(" --> ").count(), 499);
}

#[test]
fn mermaid_has_a_node_for_each_step_a_class_for_each_state_and_a_subgraph_for_finally() {
    let mut flow = five();
    flow["spec"]["flows"][4]["when"] = json!("finished");
    flow["spec"]["finally"] = json!([{"name": "clean"}]);
    let drawn = mermaid(&flow);
    for line in [
        "flowchart LR\n",
        "    s0[\"1<br/>Succeed, 12s\"]:::succeed\n",
        "    s1[\"2<br/>Running, retry 1, 1m30s\"]:::running\n",
        "    s0 --> s1\n",
        "    s3 -->|finished| s4\n",
        "  subgraph last [\"finally\"]\n    direction LR\n    f0[\"clean<br/>Waiting\"]:::waiting\n  end\n",
        "  flows --> last\n",
        "  classDef running fill:#ddf4ff",
    ] {
        assert!(drawn.contains(line), "{line:?} is not in\n{drawn}");
    }
}

#[test]
fn names_and_messages_mean_nothing_in_any_format() {
    let evil = "</text><script>x</script>\"]; %%{init}%% \u{1b}[31m#&";
    let mut flow = five();
    flow["metadata"]["name"] = json!(evil);
    flow["spec"]["flows"][0]["name"] = json!(evil);
    flow["spec"]["finally"] = json!([{"name": evil}]);
    flow["status"]["steps"][0] = json!({"name": evil, "state": "Blocked", "reason": evil, "message": evil});
    assert!(!text(&flow, 100).contains('\u{1b}'));
    let drawn = mermaid(&flow);
    assert!(!drawn.contains("<script") && !drawn.contains("%%{") && !drawn.contains('\u{1b}'), "{drawn}");
    assert!(drawn.contains("s0[\"#60;/text#62;#60;script#62;"), "{drawn}");
}

#[test]
fn a_flow_without_steps_and_an_object_full_of_nulls_are_drawn() {
    for flow in [json!({}), json!({"spec": {"flows": null, "finally": null}, "status": null, "metadata": null})] {
        assert!(text(&flow, 100).contains("no steps"), "{}", text(&flow, 100));
        assert!(mermaid(&flow).contains("flowchart LR"));
    }
    let only_finally = json!({"metadata": {"name": "x"}, "spec": {"finally": [{"name": "clean"}]}});
    assert!(text(&only_finally, 100).contains("│ ○ clean") && !mermaid(&only_finally).contains("flows --> last"));
}
