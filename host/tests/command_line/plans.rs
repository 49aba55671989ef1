//! `oarlock plan` without a cluster that answers: files that it refuses before it asks a cluster, and its help.

use std::process::{Command, Output};

use crate::{empty_folder, oarlock, text};

/// Runs `oarlock plan` on this file in a folder whose kubeconfig names a cluster that does not answer.
fn plan(name: &str, file: &str) -> Output {
    let folder = empty_folder(name);
    std::fs::write(folder.join("job.yaml"), file).unwrap();
    // No process listens on port 1.
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                  clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
                  contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n";
    std::fs::write(folder.join("kubeconfig"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oarlock"));
    command
        .current_dir(&folder)
        .env("KUBECONFIG", folder.join("kubeconfig"))
        .args(["plan", "job.yaml"])
        .output()
        .unwrap()
}

#[test]
fn a_file_that_is_no_job_is_refused_before_a_cluster_is_asked() {
    let job =
        "apiVersion: apps.kusionstack.io/v1alpha1\nkind: OperationJob\nmetadata: {name: a}\nspec: {action: Replace}\n";
    for (name, file, words) in [
        ("plan-pod", "apiVersion: v1\nkind: Pod\n".to_owned(), "kind is Pod"),
        ("plan-two", format!("{job}---\n{job}"), "holds 2 documents"),
        ("plan-typo", job.replace("action", "acton"), "spec.acton"),
        ("plan-nothing", String::new(), "it is empty"),
    ] {
        let ended = plan(name, &file);
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(1), 0), "{name}");
        assert!(text(&ended.stderr).contains(words), "{words:?} is missing in\n{}", text(&ended.stderr));
    }
    let missing = oarlock(&["plan", "there-is-none.yaml"]);
    assert!(text(&missing.stderr).contains("cannot read the job from there-is-none.yaml"), "{}", text(&missing.stderr));
}

#[test]
fn without_plugins_and_a_cluster_both_are_named() {
    let job =
        "apiVersion: apps.kusionstack.io/v1alpha1\nkind: OperationJob\nmetadata: {name: a}\nspec: {action: Replace}\n";
    let ended = plan("plan-alone", job);
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("--plugins") && said.contains("the lease oarlock-system/oarlock was not read"), "{said}");
}

#[test]
fn help_of_a_plan_teaches_by_example_and_names_its_exit_codes() {
    let help = text(&oarlock(&["plan", "--help"]).stdout);
    for words in ["oarlock plan job.yaml --plugins ./plugins --server", "4 a plan was made", "-o json"] {
        assert!(help.contains(words), "{words:?} is missing in\n{help}");
    }
    assert_eq!(oarlock(&["plan"]).status.code(), Some(2));
    assert_eq!(oarlock(&["plan", "a", "--all", "-o", "json"]).status.code(), Some(2));
}
