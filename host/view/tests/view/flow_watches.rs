//! The view of a followed JobFlow or DaemonJob: frames, lines and JSON.

use k8s_openapi::jiff::SignedDuration;
use oarlock_view::{
    Connection, FlowScreen, FlowView, Keypress, Moment, Reaction, ShownState, ViewChange, Watched as _, draw_flow,
    flow_change_line, flow_change_text, flow_changes, flow_document, flow_text, retry_value,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use crate::flows::{daemon, five, sixty};
use crate::jobs::at;

fn view(flow: &Value) -> FlowView {
    FlowView::new(flow, [])
}

fn frame(screen: &mut FlowScreen, (width, height): (u16, u16), connection: Connection) -> Vec<String> {
    let moment = Moment { now: at("10:02:00"), connection };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw_flow(frame, screen, &moment)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn shown(screen: &mut FlowScreen, size: (u16, u16)) -> String {
    frame(screen, size, Connection::Reached).join("\n")
}

#[test]
fn a_flow_shows_its_bar_its_numbers_what_it_waits_for_and_its_graph() {
    let expected = "\
JobFlow team-a/demo                                                      Running
2/5, for 2m, age 2m
[=============================>>>>>>>>>>>>>>..............................]  40%
= 2 succeeded  > 1 in flight  . 2 waiting
waits for 2: its pod runs

╭────── ✓ 1  Succeed  12s
│ ╭──── ✓ 4  Succeed  45s
├─│─┬─> ● 2  Running  1m30s   retry 1
╰─│─┼─> ○ 3  Waiting
  ╰─┴─> ○ 5  Waiting


5 steps | f filter | q leave | d graph or table";
    assert_eq!(shown(&mut FlowScreen::new(view(&five())), (80, 14)), expected);
}

#[test]
fn a_graph_that_does_not_fit_is_a_table_of_steps_with_what_needs_eyes_first() {
    let text = shown(&mut FlowScreen::new(view(&sixty())), (80, 24));
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("STEP")).skip(1).collect();
    assert!(rows[0].starts_with("step-20-of-the-nightly-import Failed"), "{text}");
    assert!(rows[5].starts_with("step-25-of-the-nightly-import Blocked"), "{text}");
    assert!(
        text.lines().last().unwrap().starts_with("all 1-14 of 60 | f filter | q leave | d graph or table"),
        "{text}"
    );
}

#[test]
fn keys_change_between_graph_and_table_and_filter_and_scroll() {
    let mut screen = FlowScreen::new(view(&five()));
    assert_eq!(screen.press(Keypress::Drawing), Reaction::Redraw);
    let text = shown(&mut screen, (80, 20));
    assert!(text.contains("STEP STATE     FOR\n2    Running   1m30s  retry 1\n3    Waiting"), "{text}");
    screen.press(Keypress::Down);
    let text = shown(&mut screen, (80, 20));
    assert!(text.contains("\n3 Waiting\n"), "the chosen one is told below: {text}");
    screen.press(Keypress::Filter);
    let text = shown(&mut screen, (80, 20));
    assert!(text.contains("needs eyes 1-1 of 1"), "{text}");
    assert_eq!(screen.press(Keypress::Leave), Reaction::Leave);
}

#[test]
fn a_run_on_nodes_says_what_is_in_its_way_and_shows_its_nodes() {
    let text = shown(&mut FlowScreen::new(view(&daemon())), (80, 16));
    assert!(text.starts_with("DaemonJob ops/patch"), "{text}");
    assert!(text.contains("NameConflict: n4: a foreign Job patch-n4\n"), "{text}");
    assert!(
        text.contains("NODE STATE     FOR\nn2   Failed    30s    JobFailed: exit code 3 on n2\nn4   Blocked"),
        "{text}"
    );
}

#[test]
fn a_frame_of_any_size_is_drawn_and_a_lost_connection_is_said_first() {
    let lost = Connection::Lost { cause: "connection refused".into(), lasting: SignedDuration::from_secs(75) };
    for flow in [five(), sixty(), daemon(), json!({})] {
        let mut screen = FlowScreen::new(view(&flow));
        for width in (1..8).chain([39, 40, 80, 300]) {
            for height in (1..20).chain([60, 200]) {
                let lines = frame(&mut screen, (width, height), lost.clone());
                if width >= 40 && height >= 12 {
                    let at = lines.iter().position(|line| line.starts_with("disconnected for 1m15s, asking again"));
                    assert_eq!(at, Some(4), "{width}x{height}: {lines:#?}");
                    assert!(lines.last().unwrap().contains("leave"), "{width}x{height}: {lines:#?}");
                }
            }
        }
    }
}

#[test]
fn each_change_is_one_line_and_times_alone_are_none() {
    let before = view(&five());
    assert_eq!(flow_changes(None, &before).len(), 4, "the flow and the three steps that do not wait");
    let mut later = five();
    later["status"]["steps"][1] = json!({"name": "2", "state": "Failed", "reason": "JobFailed", "message": "exit code 1",
        "startTime": "2026-07-01T10:00:30Z", "completionTime": "2026-07-01T10:01:30Z", "attempt": 1});
    later["status"]["state"] = json!("Failed");
    later["status"]["counts"] = Value::Null;
    later["status"]["startTime"] = json!("2026-07-01T09:59:00Z");
    let now = view(&later);
    let found = flow_changes(Some(&before), &now);
    assert_eq!(found, [ViewChange::Job, ViewChange::Target(1)]);
    let lines: Vec<String> = found.iter().map(|change| flow_change_text(change, &now, at("10:02:00"))).collect();
    assert_eq!(
        lines,
        [
            "2026-07-01T10:02:00Z  JobFlow   demo                     Failed     2/5; 2 succeeded, 1 failed, 2 waiting",
            "2026-07-01T10:02:00Z  step      2                        Failed     1m; retry 1; JobFailed: exit code 1"
        ]
    );
    assert!(flow_changes(Some(&now), &now).is_empty());
    let gone = flow_change_text(&ViewChange::Deleted, &now, at("10:02:00"));
    assert!(gone.ends_with("deleted    before it ended"), "{gone}");
}

#[test]
fn a_node_that_joins_is_one_change_though_it_moves_the_others() {
    let before = view(&daemon());
    let mut later = daemon();
    later["status"]["nodes"].as_array_mut().unwrap().insert(0, json!({"name": "n0", "state": "Pending"}));
    later["status"]["progress"] = json!("2/5");
    assert_eq!(flow_changes(Some(&before), &view(&later)), [ViewChange::Job, ViewChange::Target(0)]);
}

#[test]
fn a_change_in_json_has_the_object_or_the_unit() {
    let flow = view(&five());
    let parse =
        |change| serde_json::from_str::<Value>(&flow_change_line(&change, &flow, at("10:02:00")).unwrap()).unwrap();
    let object = parse(ViewChange::Job);
    assert_eq!(
        (&object["type"], &object["kind"], &object["object"]["progress"]),
        (&json!("object"), &json!("JobFlow"), &json!("2/5"))
    );
    assert_eq!((&object["object"]["counts"]["succeeded"], &object["object"]["ended"]), (&json!(2), &json!(false)));
    let unit = parse(ViewChange::Target(1));
    let expected = json!({"name": "2", "state": "Running", "job": "demo-2-r1", "attempt": 1,
        "startTime": "2026-07-01T10:00:30Z", "finally": false, "outdated": false, "tolerated": false});
    assert_eq!((&unit["type"], &unit["unit"]), (&json!("unit"), &expected));
    let document: Value = serde_json::from_str(&flow_document(&flow).unwrap()).unwrap();
    assert_eq!(document["units"].as_array().unwrap().len(), 5);
}

#[test]
fn a_flow_has_ended_once_it_is_at_rest_and_no_edit_or_retry_is_waiting() {
    let mut flow = five();
    let has_ended = |flow: &Value| view(flow).has_ended();
    flow["status"]["state"] = json!("Failed");
    assert!(!has_ended(&flow), "a flow says Failed at once, while steps of it still run");
    flow["status"]["completionTime"] = json!("2026-07-01T10:01:30Z");
    assert!(has_ended(&flow) && !view(&flow).has_succeeded());
    flow["metadata"]["annotations"] = json!({"oarlock.dev/retry": "t1/2"});
    assert!(!has_ended(&flow), "a retry was asked for");
    for seen in ["t1", "t1/2"] {
        flow["status"]["retryToken"] = json!(seen);
        assert!(has_ended(&flow), "{seen}");
    }
    flow["metadata"]["generation"] = json!(2);
    assert!(!has_ended(&flow), "an edit was not seen yet");
    let of_the_original = json!({"metadata": {"generation": 1}, "status": {"state": "Succeed"}});
    assert!(has_ended(&of_the_original) && view(&of_the_original).has_succeeded());
    assert!(!has_ended(&json!({})), "nothing has begun");
}

#[test]
fn records_of_the_object_fill_a_table_that_was_cut() {
    let mut job = daemon();
    job["status"]["tableTruncated"] = json!(true);
    job["status"]["counts"] = json!({"total": 6, "succeeded": 3, "failed": 1, "running": 1, "blocked": 1});
    assert_eq!(view(&job).missing_detail().as_deref(), Some("2 of 6 nodes are in JobRecords that were not read"));
    let record = |uid: &str| {
        let entries = [
            json!({"name": "n5", "state": "Succeed"}),
            json!({"name": "n6", "state": "Omitted", "reason": "NodeGone"}),
        ];
        json!({"metadata": {"ownerReferences": [{"uid": uid}]}, "shard": 0, "units": entries.map(|entry| entry.to_string())})
    };
    let foreign = record("u9");
    assert_eq!(FlowView::new(&job, [&foreign]).units().len(), 4);
    let own = record("u2");
    let whole = FlowView::new(&job, [&own, &foreign]);
    assert_eq!((whole.units().len(), whole.missing), (6, 0));
    assert_eq!(whole.units()[5].state, ShownState::Omitted);
}

#[test]
fn a_table_of_nodes_is_what_stays_in_the_terminal() {
    let text = flow_text(&view(&daemon()), at("10:02:00"));
    assert!(
        text.starts_with("DaemonJob ops/patch  Running  2/4  1 succeeded, 1 failed, 1 blocked, 1 running  2m\n"),
        "{text}"
    );
    assert!(text.contains("\nn2     ✗ Failed    30s   JobFailed: exit code 3 on n2\n"), "{text}");
    assert_eq!(view(&daemon()).text(at("10:02:00")), text);
    assert!(view(&five()).text(at("10:02:00")).contains("├─│─┬─> ● 2"));
}

#[test]
fn a_retry_is_a_fresh_token_with_the_names_that_were_given() {
    let failed = {
        let mut flow = five();
        flow["status"]["steps"][1] = json!({"name": "2", "state": "Failed"});
        flow["status"]["steps"][2] = json!({"name": "3", "state": "Omitted"});
        view(&flow)
    };
    let now = "2026-07-01T10:02:00.5Z".parse().unwrap();
    let ask = |view: &FlowView, names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        retry_value(view, &names, now)
    };
    assert_eq!(ask(&failed, &[]).as_deref(), Ok("2026-07-01T10:02:00.500Z"));
    assert_eq!(ask(&failed, &["2", "3"]).as_deref(), Ok("2026-07-01T10:02:00.500Z/2,3"));
    assert_eq!(ask(&failed, &["2", "six"]), Err("jf/demo has no step six: its steps are 1, 2, 3, 4, 5".to_owned()));
    let nothing = ask(&failed, &["1"]).unwrap_err();
    assert_eq!(nothing, "jf/demo: step 1 has not failed or been omitted, so there is nothing to retry");
    assert!(ask(&view(&five()), &[]).unwrap_err().starts_with("jf/demo: no step has failed or been omitted"));
    let mut paused = five();
    paused["status"]["conditions"] = json!([{"type": "Paused", "status": "True", "reason": "FailurePolicy"}]);
    assert!(ask(&view(&paused), &[]).is_ok(), "a retry resumes what is paused");
}

#[test]
fn records_of_nodes_that_left_the_set_are_not_shown() {
    let record = |shard: usize| {
        let of_shard = 250 * shard..250 * (shard + 1);
        let entry = |index: usize| json!({"name": format!("m{index:03}"), "state": "Succeed"}).to_string();
        json!({"metadata": {"ownerReferences": [{"uid": "u2"}]}, "shard": shard, "units": of_shard.map(entry).collect::<Vec<_>>()})
    };
    let records = [0, 1, 2].map(record);
    let mut job = daemon();
    job["status"]["nodes"] = json!([]);
    job["status"]["tableTruncated"] = json!(true);
    job["status"]["counts"] = json!({"total": 500, "succeeded": 500});
    let shown = FlowView::new(&job, &records);
    assert_eq!((shown.units().len(), shown.missing), (500, 0), "the third record is from when there were more");
    let whole = daemon();
    assert_eq!(FlowView::new(&whole, &records).units(), view(&whole).units(), "a whole table needs no record");
}
