//! Keys, policies, bundles and sidecars that somebody made to deceive, or by mistake.
#![cfg(test)]

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oarlock_signature::{
    ArtefactManifest, ComponentInfo, KeyRefused, MOST_BUNDLES, MOST_SIDECAR, OldSignature, PublicKey, Sha256,
    SignatureEvidence, SigningKey, TrustPolicy, Untrusted, UntrustedReason, new_artefact,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{IN_TOTO, Pair, bundle, bundle_of, hex, pae, pem, policy, statement};

fn wanted() -> Sha256 {
    Sha256::of(b"the manifest")
}

fn evidence(bundles: &[Vec<u8>]) -> SignatureEvidence {
    let mut evidence = SignatureEvidence::default();
    bundles.iter().for_each(|bundle| evidence.add_bundle(bundle.clone()));
    evidence
}

fn judged(key: &Pair, bundle: Vec<u8>) -> Result<(), Untrusted> {
    evidence(&[bundle]).judge_manifest(&policy(&[key], 1), &wanted()).map(drop)
}

#[track_caller]
fn assert_refused(refused: Result<(), Untrusted>, reason: UntrustedReason, words: &str) {
    let refused = refused.unwrap_err();
    assert_eq!(refused.reason(), reason, "{refused}");
    assert!(refused.to_string().contains(words), "{refused}");
}

#[test]
fn usual_bundle_of_these_tests_is_accepted() {
    let key = Pair::new();
    assert_eq!(judged(&key, key.envelope(IN_TOTO, &statement(&wanted()).to_string())), Ok(()));
}

#[test]
fn signature_over_the_bare_payload_is_none_of_an_envelope() {
    let (key, payload) = (Pair::new(), statement(&wanted()).to_string());
    let refused = judged(&key, bundle(IN_TOTO, &payload, &key.sign(payload.as_bytes())));
    assert_refused(refused, UntrustedReason::SignedByNobodyTrusted, "no key of signedBy");
}

#[test]
fn no_part_of_an_envelope_passes_for_another() {
    // The key signed a payload of another type. Moving its beginning into the type must not give the same signed bytes.
    let (key, payload) = (Pair::new(), statement(&wanted()).to_string());
    let signed = key.sign(&pae("text/plain", format!("{IN_TOTO} {} {payload}", payload.len()).as_bytes()));
    assert_refused(judged(&key, bundle(IN_TOTO, &payload, &signed)), UntrustedReason::SignedByNobodyTrusted, "no key");
    // Without lengths, the two would be the same.
    let without = key.sign(format!("DSSEv1 {IN_TOTO} {payload}").as_bytes());
    assert_refused(judged(&key, bundle(IN_TOTO, &payload, &without)), UntrustedReason::SignedByNobodyTrusted, "no key");
}

#[test]
fn payload_of_another_type_does_not_count_even_if_it_is_signed() {
    let key = Pair::new();
    let refused = judged(&key, key.envelope("application/json", &statement(&wanted()).to_string()));
    assert_refused(refused, UntrustedReason::NotSigned, "payload type \"application/json\"");
}

#[test]
fn attestation_by_a_trusted_key_is_no_signature() {
    let key = Pair::new();
    let mut sbom = statement(&wanted());
    sbom["predicateType"] = json!("https://spdx.dev/Document");
    let refused = judged(&key, key.envelope(IN_TOTO, &sbom.to_string()));
    assert_refused(refused, UntrustedReason::NotSigned, "a trusted key signed something else, of type");
    let mut older = statement(&wanted());
    older["_type"] = json!("https://in-toto.io/Statement/v0.1");
    assert!(judged(&key, key.envelope(IN_TOTO, &older.to_string())).is_err());
}

#[test]
fn valid_signature_of_another_digest_is_named() {
    let (key, other) = (Pair::new(), Sha256::of(b"an old version"));
    let refused = judged(&key, key.envelope(IN_TOTO, &statement(&other).to_string()));
    assert_refused(refused, UntrustedReason::SignatureForOther, other.as_str());
}

#[test]
fn subject_must_be_the_whole_digest() {
    let key = Pair::new();
    for wrong in [wanted().hex()[..32].to_owned(), wanted().hex().to_uppercase(), wanted().to_string(), String::new()] {
        let mut of_it = statement(&wanted());
        of_it["subject"][0]["digest"]["sha256"] = json!(wrong);
        assert_refused(judged(&key, key.envelope(IN_TOTO, &of_it.to_string())), UntrustedReason::SignatureForOther, "");
    }
    let mut none = statement(&wanted());
    none["subject"] = json!([]);
    assert_refused(
        judged(&key, key.envelope(IN_TOTO, &none.to_string())),
        UntrustedReason::SignatureForOther,
        "nothing",
    );
    let mut sha512 = statement(&wanted());
    sha512["subject"][0]["digest"] = json!({"sha512": wanted().hex()});
    assert!(judged(&key, key.envelope(IN_TOTO, &sha512.to_string())).is_err());
    let mut many = statement(&wanted());
    many["subject"] = json!(vec![many["subject"][0].clone(); 129]);
    assert_refused(judged(&key, key.envelope(IN_TOTO, &many.to_string())), UntrustedReason::NotSigned, "128 subjects");
}

#[test]
fn statement_with_a_key_twice_is_not_read() {
    let key = Pair::new();
    let text = statement(&wanted()).to_string();
    let twice = text.replacen('{', &format!("{{\"predicateType\":\"{}\",", support::SIGN), 1);
    assert_refused(judged(&key, key.envelope(IN_TOTO, &twice)), UntrustedReason::NotSigned, "cannot be read");
}

#[test]
fn envelope_with_several_signatures_is_not_read() {
    let (key, payload) = (Pair::new(), statement(&wanted()).to_string());
    let signature = json!({"sig": key.sign(&pae(IN_TOTO, payload.as_bytes()))});
    for signatures in [json!([]), json!([signature, signature])] {
        let bundle =
            bundle_of(json!({"payload": STANDARD.encode(&payload), "payloadType": IN_TOTO, "signatures": signatures}));
        assert_refused(judged(&key, bundle), UntrustedReason::NotSigned, "signatures, and not one");
    }
}

#[test]
fn what_is_no_bundle_does_not_count() {
    let key = Pair::new();
    let good: Value = serde_json::from_slice(&key.envelope(IN_TOTO, &statement(&wanted()).to_string())).unwrap();
    let mut other_version = good.clone();
    other_version["mediaType"] = json!("application/vnd.dev.sigstore.bundle+json;version=0.2");
    let mut both = good.clone();
    both["messageSignature"] = json!({"signature": "AAAA"});
    let mut neither = good.clone();
    neither.as_object_mut().unwrap().remove("dsseEnvelope");
    let mut broken = good;
    broken["dsseEnvelope"]["payload"] = json!("%");
    let deep = format!("{{\"mediaType\": {}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    for (bundle, words) in [
        (other_version.to_string(), "only application/vnd.dev.sigstore.bundle.v0.3+json is read"),
        (both.to_string(), "not exactly one"),
        (neither.to_string(), "not exactly one"),
        (broken.to_string(), "no Base64"),
        (deep, "cannot be read"),
        (String::new(), "cannot be read"),
        ("null".to_owned(), "cannot be read"),
        ("\u{1b}[31m".to_owned(), "cannot be read"),
    ] {
        assert_refused(judged(&key, bundle.into_bytes()), UntrustedReason::NotSigned, words);
    }
}

#[test]
fn foreign_text_in_a_message_is_short_and_escaped() {
    let key = Pair::new();
    let mut loud = statement(&wanted());
    loud["predicateType"] = json!(format!("\u{1b}[31m\n{}", "x".repeat(10_000)));
    let refused = judged(&key, key.envelope(IN_TOTO, &loud.to_string())).unwrap_err().to_string();
    assert!(refused.len() < 1_000 && !refused.contains(['\u{1b}', '\n']), "{refused}");
    let mut other = statement(&wanted());
    other["subject"][0]["digest"]["sha256"] = json!(format!("\u{1b}[31m\n{}", "x".repeat(10_000)));
    let refused = judged(&key, key.envelope(IN_TOTO, &other.to_string())).unwrap_err().to_string();
    assert!(refused.len() < 1_000 && !refused.contains(['\u{1b}', '\n']), "{refused}");
}

#[test]
fn threshold_counts_keys_and_not_signatures() {
    let (one, two, stranger) = (Pair::new(), Pair::new(), Pair::new());
    let text = statement(&wanted()).to_string();
    let [first, again, second, other] = [&one, &one, &two, &stranger].map(|key| key.envelope(IN_TOTO, &text));
    assert_ne!(first, again, "two different signatures of one key");
    let both = policy(&[&one, &two], 2);
    let refused = evidence(&[first.clone(), again, other]).judge_manifest(&both, &wanted()).map(drop);
    assert_refused(refused, UntrustedReason::TooFewSigners, "1 of the keys of signedBy signed manifest");
    let signers = evidence(&[second, first]).judge_manifest(&both, &wanted()).unwrap();
    let keys: Vec<Sha256> = both.keys().iter().map(PublicKey::fingerprint).collect();
    assert_eq!(signers.fingerprints(), keys);
}

#[test]
fn both_forms_count_together() {
    let (one, two) = (Pair::new(), Pair::new());
    let mut evidence = evidence(&[one.envelope(IN_TOTO, &statement(&wanted()).to_string())]);
    let payload = old_payload(wanted().as_str(), "cosign container image signature");
    evidence.add_old(OldSignature { signature: two.sign(&payload), payload });
    assert!(evidence.judge_manifest(&policy(&[&one, &two], 2), &wanted()).is_ok());
}

fn old_payload(digest: &str, kind: &str) -> Vec<u8> {
    json!({"critical": {"identity": {"docker-reference": "registry.example/elsewhere"},
        "image": {"docker-manifest-digest": digest}, "type": kind}, "optional": null})
    .to_string()
    .into_bytes()
}

#[test]
fn older_form_is_judged_by_its_payload() {
    let key = Pair::new();
    let other = Sha256::of(b"other");
    for (digest, kind, reason) in [
        (wanted().to_string(), "cosign container image signature", None),
        (other.to_string(), "cosign container image signature", Some(UntrustedReason::SignatureForOther)),
        (wanted().to_string(), "atomic container signature", Some(UntrustedReason::NotSigned)),
    ] {
        let payload = old_payload(&digest, kind);
        let mut evidence = SignatureEvidence::default();
        evidence.add_old(OldSignature { signature: key.sign(&payload), payload });
        let judged = evidence.judge_manifest(&policy(&[&key], 1), &wanted());
        assert_eq!(judged.err().map(|refused| refused.reason()), reason, "{digest} {kind}");
    }
    let payload = old_payload(wanted().as_str(), "cosign container image signature");
    let mut evidence = SignatureEvidence::default();
    evidence.add_old(OldSignature { signature: key.sign(b"something else"), payload });
    let refused = evidence.judge_manifest(&policy(&[&key], 1), &wanted()).map(drop);
    assert_refused(refused, UntrustedReason::SignedByNobodyTrusted, "which has 1");
}

#[test]
fn unsigned_plugin_is_told_how_to_be_signed() {
    let refused = SignatureEvidence::default().judge_manifest(&policy(&[&Pair::new()], 1), &wanted()).map(drop);
    assert_refused(refused, UntrustedReason::NotSigned, "cosign sign --key KEY --signing-config none.json");
    let refused = SignatureEvidence::default().judge_file(&policy(&[&Pair::new()], 1), b"x").map(drop);
    assert_refused(refused, UntrustedReason::NotSigned, "cosign sign-blob --key KEY --bundle NAME.wasm.sigstore.json");
}

#[test]
fn more_signatures_than_the_bound_are_not_kept() {
    let key = Pair::new();
    let mut evidence = SignatureEvidence::default();
    evidence.add_bundle(vec![b' '; 64 * 1024 + 1]);
    assert_eq!(evidence.count(), 0);
    for _ in 0..100 {
        evidence.add_bundle(b"{}".to_vec());
        evidence.add_old(OldSignature { payload: Vec::new(), signature: String::new() });
    }
    assert_eq!(evidence.count(), MOST_BUNDLES);
    let refused = evidence.judge_manifest(&policy(&[&key], 1), &wanted()).unwrap_err().to_string();
    assert!(refused.contains("a bundle of 65537 bytes, and 65536 are the most"), "{refused}");
}

/// A component with its manifest.
fn plugin() -> (Vec<u8>, ArtefactManifest) {
    let component = b"\0asm component".to_vec();
    let info = ComponentInfo { name: "replace".into(), version: "1.0.0".into(), ..ComponentInfo::default() };
    let manifest = ArtefactManifest::parse(&new_artefact(&component, &info).manifest, 1_000).unwrap();
    (component, manifest)
}

#[test]
fn sidecar_of_a_pulled_plugin_links_the_file_to_what_was_signed() {
    let (one, two) = (Pair::new(), Pair::new());
    let (component, manifest) = plugin();
    let mut pulled =
        evidence(&[one.envelope(IN_TOTO, &statement(manifest.digest()).to_string())]).with_manifest(manifest.bytes());
    let payload = old_payload(manifest.digest().as_str(), "cosign container image signature");
    pulled.add_old(OldSignature { signature: two.sign(&payload), payload });
    let read = SignatureEvidence::read_sidecar(pulled.sidecar().as_slice()).unwrap();
    assert_eq!(read, pulled);
    assert!(read.judge_file(&policy(&[&one, &two], 2), &component).is_ok());

    // The manifest beside the file is of another file, or not the one that is signed.
    let refused = read.judge_file(&policy(&[&one], 1), b"another file").map(drop);
    assert_refused(refused, UntrustedReason::SignatureForOther, "the manifest beside it is of file");
    let info = ComponentInfo { name: "other".into(), ..ComponentInfo::default() };
    let forged = read.clone().with_manifest(&new_artefact(b"another file", &info).manifest);
    let refused = forged.judge_file(&policy(&[&one], 1), b"another file").map(drop);
    assert_refused(refused, UntrustedReason::SignatureForOther, manifest.digest().as_str());
    let none = read.with_manifest(b"{}").judge_file(&policy(&[&one], 1), &component).map(drop);
    assert_refused(none, UntrustedReason::SignatureForOther, "is of no plugin");
}

#[test]
fn sidecar_of_cosign_is_one_bundle_whatever_spaces_are_around_it() {
    let key = Pair::new();
    let signing = SigningKey::from_pem(&key.private_pem()).unwrap();
    let bundle = signing.sign_file(b"file").unwrap();
    let sidecar = [b"\n  ", bundle.as_slice(), b"\r\n\n"].concat();
    let read = SignatureEvidence::read_sidecar(sidecar.as_slice()).unwrap();
    assert!(read.judge_file(&policy(&[&key], 1), b"file").is_ok());
}

#[test]
fn sidecar_without_an_end_is_read_up_to_its_bound() {
    struct Endless(u64);
    impl std::io::Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0 += buffer.len() as u64;
            buffer.fill(b' ');
            Ok(buffer.len())
        }
    }
    let mut endless = Endless(0);
    assert!(SignatureEvidence::read_sidecar(&mut endless).unwrap_err().contains("more than 4 MiB"));
    assert!(endless.0 < MOST_SIDECAR * 2, "{} bytes were read", endless.0);
    assert!(SignatureEvidence::read_sidecar(&b"hello"[..]).unwrap_err().contains("no JSON"));
    let many = b"{}\n".repeat(10_000);
    assert_eq!(SignatureEvidence::read_sidecar(many.as_slice()).unwrap().count(), 0);
}

#[test]
fn other_keys_are_refused_by_name() {
    let rsa = hex("30820122300d06092a864886f70d01010105000382010f00");
    let p384 = hex("3076301006072a8648ce3d020106052b81040022036200");
    let p521 = hex("30819b301006072a8648ce3d020106052b8104002303818600");
    let k256 = hex("3056301006072a8648ce3d020106052b8104000a034200");
    let compressed = hex("3039301306072a8648ce3d020106082a8648ce3d03010703220002");
    let prefix = hex("3059301306072a8648ce3d020106082a8648ce3d030107034200");
    let off_curve = [prefix.clone(), vec![4], vec![1; 64]].concat();
    let too_long = [prefix, vec![4], vec![1; 65]].concat();
    for (text, words) in [
        (pem("PUBLIC KEY", &rsa), "an RSA key; use a P-256 key"),
        (pem("PUBLIC KEY", &p384), "the curve P-384"),
        (pem("PUBLIC KEY", &p521), "the curve P-521"),
        (pem("PUBLIC KEY", &k256), "the curve secp256k1"),
        (pem("PUBLIC KEY", &compressed), "in another form"),
        (pem("PUBLIC KEY", &off_curve), "not on the curve"),
        (pem("PUBLIC KEY", &too_long), "in another form"),
        (pem("PUBLIC KEY", b""), "no public key that is known here"),
        (pem("CERTIFICATE", b"x"), "openssl x509 -pubkey"),
        (Pair::new().private_pem(), "name the public key here"),
        (pem("PGP PUBLIC KEY BLOCK", b"x"), "use the file cosign.pub"),
        (format!("{}{}", Pair::new().public_pem(), Pair::new().public_pem()), "several sections"),
        ("-----BEGIN PUBLIC KEY-----\nMFkw".to_owned(), "last line is missing"),
        ("hello".to_owned(), "no line"),
        ("x".repeat(100_000), "16 KiB"),
    ] {
        let refused = PublicKey::from_pem(&text).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn other_private_keys_are_refused_with_the_fix() {
    for (text, words) in [
        (pem("EC PRIVATE KEY", b"x"), "openssl pkcs8 -topk8"),
        (pem("ENCRYPTED PRIVATE KEY", b"x"), "has a password"),
        (pem("ENCRYPTED SIGSTORE PRIVATE KEY", b"{}"), "cosign's own"),
        (Pair::new().public_pem(), "is a public key"),
        (pem("PRIVATE KEY", &hex("302e020100300506032b6570")), "an Ed25519 key"),
        (pem("PRIVATE KEY", &hex("3081b6020100301006072a8648ce3d020106052b81040022")), "P-384"),
    ] {
        let refused = SigningKey::from_pem(&text).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let key = Pair::new();
    let shown = format!("{:?}", SigningKey::from_pem(&key.private_pem()).unwrap());
    assert!(shown.contains("public") && !shown.contains(&STANDARD.encode(&key.pkcs8)[50..80]), "{shown}");
}

#[test]
fn policy_must_be_possible() {
    let (one, two) = (Pair::new().public_pem(), Pair::new().public_pem());
    let of = |keys: &[&str], threshold| TrustPolicy::new(keys.iter().copied(), threshold);
    let words = |refused: Result<TrustPolicy, KeyRefused>| refused.unwrap_err().to_string();
    assert!(words(of(&[], 1)).contains("has no key"));
    assert!(words(of(&[&one], 0)).contains("use a threshold from 1 to 1"));
    assert!(words(of(&[&one], 2)).contains("the threshold of signedBy is 2, and it has 1 keys"));
    assert!(words(of(&[&one, &two, &one], 2)).contains("keys 1 and 3 of signedBy are the same key"));
    let many: Vec<String> = (0..17).map(|_| Pair::new().public_pem()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(words(of(&many, 1)).contains("more than 16 keys"));
    assert_eq!(of(&[&one, &two], 1).unwrap().digest(), of(&[&two, &one], 1).unwrap().digest());
    assert_ne!(of(&[&one, &two], 1).unwrap().digest(), of(&[&one, &two], 2).unwrap().digest());
    assert_ne!(of(&[&one], 1).unwrap().digest(), of(&[&two], 1).unwrap().digest());
}

#[test]
fn manifest_of_something_else_is_no_plugin() {
    let (_, manifest) = plugin();
    let good: Value = serde_json::from_slice(manifest.bytes()).unwrap();
    let with = |path: &str, value: Value| {
        let mut other = good.clone();
        *other.pointer_mut(path).unwrap() = value;
        other.to_string().into_bytes()
    };
    let mut index = good.clone();
    index["manifests"] = json!([]);
    let layer = good["layers"][0].clone();
    for (bytes, words) in [
        (
            with("/config/mediaType", json!("application/vnd.oci.image.config.v1+json")),
            "its configuration has the type",
        ),
        (with("/layers", json!([])), "it has 0 layers"),
        (with("/layers", json!([layer, layer])), "it has 2 layers"),
        (with("/layers/0/mediaType", json!("application/vnd.oci.image.layer.v1.tar")), "its layer has the type"),
        (with("/layers/0/size", json!(1_001)), "has 1001 bytes, and this host takes at most 1000"),
        (with("/layers/0/size", json!(-1)), "cannot be read"),
        (with("/layers/0/digest", json!("sha256:../../x")), "is no digest"),
        (with("/mediaType", json!("application/vnd.oci.image.index.v1+json")), "its manifest has the type"),
        (with("/schemaVersion", json!(1)), "its manifest has the type"),
        (index.to_string().into_bytes(), "an index of several images"),
        (b"<html>".to_vec(), "cannot be read"),
        (vec![b' '; 65_537], "more than 64 KiB"),
    ] {
        let refused = ArtefactManifest::parse(&bytes, 1_000).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
}

proptest! {
    #[test]
    fn no_bytes_bring_the_reader_down_or_are_trusted(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let key = SigningKey::from_pem(include_str!("golden/openssl-p256.key")).unwrap();
        let pem = key.public_key().pem();
        let trusted = TrustPolicy::new([pem.as_str()], 1).unwrap();
        prop_assert!(evidence(std::slice::from_ref(&bytes)).judge_manifest(&trusted, &wanted()).is_err());
        if let Ok(read) = SignatureEvidence::read_sidecar(bytes.as_slice()) {
            prop_assert!(read.judge_file(&trusted, b"file").is_err());
        }
        prop_assert!(ArtefactManifest::parse(&bytes, 1_000).is_err());
    }

    #[test]
    fn no_change_of_a_bundle_makes_it_sign_anything_else(place in 0_usize..700, byte in any::<u8>()) {
        let golden = include_bytes!("golden/cosign-3.1.3-p256.sigstore.json");
        let trusted = TrustPolicy::new([include_str!("golden/p256.pub")], 1).unwrap();
        let mut changed = golden.to_vec();
        let place = place % changed.len();
        changed[place] = byte;
        prop_assert!(evidence(&[changed]).judge_manifest(&trusted, &wanted()).is_err());
    }
}
