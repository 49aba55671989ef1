//! Files that are rejected before they are compiled.

use oarlock_wasm::{MAX_BYTES, PluginStatus, Plugins, annotate, dry_run, inspect};
use serde_json::json;

use crate::components::{all_of, component, manifest, options, with_manifest};

async fn dropped(bytes: Vec<u8>) -> PluginStatus {
    let plugins = Plugins::start(options()).await.unwrap();
    plugins.publish("dropped", bytes).await.unwrap()
}

#[tokio::test]
async fn each_file_that_is_no_plugin_is_rejected_with_a_fix() {
    let whole = component("replace");
    let half = whole[..whole.len() / 2].to_vec();
    let mut flipped = whole.clone();
    // Only the first sections are damaged, because data in the middle of a component may have any value.
    flipped[8..72].fill(0xff);
    for (bytes, reason) in [
        (Vec::new(), "EmptyFile"),
        (b"#!/bin/sh".to_vec(), "NotWebAssembly"),
        (b"\0asm\x01\0\0\0".to_vec(), "CoreModule"),
        (half, "Truncated"),
        (vec![0; MAX_BYTES as usize + 1], "TooLarge"),
        (component("examples/no_manifest"), "ManifestMissing"),
        (component("examples/files"), "ImportNotOffered"),
        (component("examples/sockets"), "ImportNotOffered"),
    ] {
        let status = dropped(bytes).await;
        assert_eq!(status.reason, reason, "{}", status.message);
        assert!(status.message.contains(';') || status.message.contains("at most"), "no fix in: {}", status.message);
    }
    // Damage anywhere is refused once the plugin is granted, because the host checks the code only then.
    let plugins = Plugins::start(options()).await.unwrap();
    plugins.set_grants(vec![all_of(&whole, None)]).await;
    let status = plugins.publish("flipped", flipped).await.unwrap();
    assert_eq!(format!("{:?}", status.state), "Rejected", "{status:?}");
}

#[tokio::test]
async fn a_plugin_whose_manifest_knows_of_the_denial_serves_without_files_and_network() {
    for (name, words) in [("files", json!(["files"])), ("sockets", json!(["files", "sockets"]))] {
        let bytes = component(&format!("examples/{name}"));
        let knowing = with_manifest(&bytes, |manifest| manifest["denied"] = words);
        let plugins = Plugins::start(options()).await.unwrap();
        plugins.set_grants(vec![all_of(&knowing, None)]).await;
        let status = plugins.publish(name, knowing).await.unwrap();
        assert_eq!(status.reason, "Serving", "{name}: {}", status.message);
    }
}

#[tokio::test]
async fn an_annotated_manifest_wins_over_the_linked_one() {
    let bytes = component("replace");
    let linked = manifest(&bytes);
    let annotated = with_manifest(&bytes, |manifest| manifest["version"] = json!("9.9.9"));
    assert_ne!(linked["version"], "9.9.9");
    assert_eq!(manifest(&annotated)["version"], "9.9.9");
    assert!(inspect(&annotated).unwrap().sections.iter().any(|section| section.own));
}

#[tokio::test]
async fn a_dry_run_reports_the_status_that_a_file_would_have() {
    let bytes = component("replace");
    let report = dry_run(bytes.clone(), Vec::new(), options()).await.unwrap().unwrap();
    assert_eq!((report.status.reason.as_str(), report.inspection.unwrap().bytes), ("GrantMissing", bytes.len()));
    let report = dry_run(bytes.clone(), vec![all_of(&bytes, None)], options()).await.unwrap().unwrap();
    assert_eq!(report.status.reason, "Serving");
}

#[tokio::test]
async fn a_manifest_that_lies_gets_no_more_than_it_says() {
    // The plugin evicts, but its manifest asks for no writes.
    let bytes = with_manifest(&component("replace"), |manifest| manifest["writes"] = json!([]));
    let plugins = Plugins::start(options()).await.unwrap();
    plugins.set_grants(vec![all_of(&component("replace"), None)]).await;
    assert_eq!(plugins.publish("liar", bytes).await.unwrap().reason, "Serving");
    // The plugin registers relations of pods, but its manifest asks for no reads.
    let bytes = with_manifest(&component("replace"), |manifest| manifest["reads"] = json!([]));
    assert_eq!(plugins.publish("liar", bytes).await.unwrap().reason, "RegistrationRefused");
}

#[test]
fn an_inspection_lists_imports_exports_and_the_manifest() {
    let inspection = inspect(&component("replace")).unwrap();
    assert_eq!(inspection.manifest.as_ref().map(|manifest| manifest.action.as_str()), Some("Replace"));
    assert!(inspection.exports.iter().any(|export| export.starts_with("oarlock:action/handler@1.")));
    assert!(inspection.imports.iter().all(|import| import.contains('@')), "{:?}", inspection.imports);
    assert!(annotate(&component("replace"), b"{}").is_err());
}
