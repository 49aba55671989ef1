//! Token realms, redirects and uploads at other hosts, and the hosts that get a password.

use super::*;

#[tokio::test]
async fn mirror_is_asked_in_place_of_the_registry() {
    let (mirror, target) = (Fake::serving(image(), honest()).await, Fake::empty().await);
    let mut copy = copy_of("registry.example", &target.address);
    copy.source_base = Some(format!("http://{}/mirror/", mirror.address));
    assert_eq!(run(&copy).await.unwrap().digest, image().root);
    assert!(mirror.asked("GET /mirror/v2/team/app/manifests/1") == 1);
    copy.source_base = Some("http://mirror.example".to_owned());
    assert_failed(&run(&copy).await.unwrap_err(), Fault::Pull, "without HTTPS");
}

#[tokio::test]
async fn realm_at_another_host_is_not_asked() {
    let other = Fake::empty().await;
    let challenge = format!(r#"Bearer realm="http://{}/token?secret=1",service="x""#, other.address);
    let lie = about(Method::GET, "manifests", move |_, _| Some(response(401, &[("www-authenticate", &challenge)], "")));
    let failed = from_a_liar(image(), lie).await;
    let words = "for a token, which is not among the hosts that are allowed: name it in `authHosts` of the grant, or for the target by `--export-host`";
    assert_failed(&failed, Fault::Pull, words);
    assert!(failed.to_string().contains(&format!("the registry sends to {}", other.address)), "{failed}");
    assert_eq!(other.asked(""), 0);
    for realm in ["https://169.254.169.254/token", "http://auth.example/token", "file:///etc/passwd", "token", ""] {
        let challenge = format!(r#"Bearer realm="{realm}""#);
        let lie =
            about(Method::GET, "manifests", move |_, _| Some(response(401, &[("www-authenticate", &challenge)], "")));
        assert_failed(&from_a_liar(image(), lie).await, Fault::Pull, "the registry sends");
    }
}

/// A registry that issues tokens and requires them. It accepts only the token of the token request with this number.
fn with_tokens(takes: &'static str) -> Lie {
    Box::new(move |asked, before| {
        let has = |value: &str| asked.headers.get("authorization").is_some_and(|sent| sent == value);
        if asked.uri.path() == "/token" {
            let query = asked.uri.query().unwrap_or_default();
            assert!(query.contains("scope=repository%3Ateam%2Fapp%3Apull"), "{query}");
            let password = format!("Basic {}", base64_of(&format!("me:{PASSWORD}")));
            let token = format!(r#"{{"access_token": "{TOKEN}-{before}"}}"#);
            return Some(if has(&password) { response(200, &[], token) } else { response(401, &[], "") });
        }
        let host = asked.headers["host"].to_str().unwrap();
        let challenge = format!(r#"Bearer realm="http://{host}/token",service="x""#);
        let is_known = has(&format!("Bearer {TOKEN}-{takes}"));
        (!is_known).then(|| response(401, &[("www-authenticate", &challenge)], ""))
    })
}

fn base64_of(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[tokio::test]
async fn token_is_got_once_for_a_copy() {
    let (source, target) = (Fake::serving(image(), with_tokens("0")).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.source_credentials = vec![me()];
    run(&copy).await.unwrap();
    assert_eq!(source.asked("GET /token"), 1);
    let asked = target.store.asked.lock().unwrap();
    assert!(asked.iter().all(|(_, authorization)| authorization.is_none()), "the target is not told");
}

#[tokio::test]
async fn credentials_are_tried_in_order() {
    let (source, target) = (Fake::serving(image(), with_tokens("0")).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    let wrong = Credentials { username: "you".into(), password: "no".into() };
    copy.source_credentials = vec![wrong.clone()];
    let failed = checked(run(&copy).await.unwrap_err(), &target);
    assert_failed(&failed, Fault::Unauthorized, "the credentials are wrong, or do not suffice");
    assert!(!failed.is_for_now());

    // The copy requests a token with each of the two credentials.
    let source = Fake::serving(image(), with_tokens("1")).await;
    let mut copy = copy_of(&source.address, &target.address);
    copy.source_credentials = vec![wrong, me()];
    run(&copy).await.unwrap();
}

#[tokio::test]
async fn token_that_is_refused_is_not_asked_for_for_ever() {
    let failed = from_a_liar(image(), with_tokens("never")).await;
    assert_failed(&failed, Fault::Unauthorized, "401");
    let long = about(Method::GET, "token", |_, _| Some(response(200, &[], vec![b' '; 70_000])));
    let tokens = with_tokens("0");
    let lie: Lie = Box::new(move |asked, before| long(asked, before).or_else(|| tokens(asked, before)));
    assert_failed(&from_a_liar(image(), lie).await, Fault::Pull, "more than 64 KiB");
}

#[tokio::test]
async fn redirects_are_followed_only_to_hosts_that_are_allowed() {
    for (place, words) in [
        ("https://169.254.169.254/latest/meta-data?token=1", "redirects to 169.254.169.254, which is not among"),
        ("http://169.254.169.254/latest/meta-data", "redirects to 169.254.169.254 without HTTPS"),
        ("https://cdn.example/x?sig=1", "redirects to cdn.example, which is not among the hosts that are allowed"),
        ("//[::1]:1/x", "redirects to [::1]:1, which is not among"),
        ("ftp://cdn.example/", "without HTTPS"),
        ("https://", "without a place to go to"),
    ] {
        let lie = about(Method::GET, layer(), move |_, _| Some(response(307, &[("location", place)], "")));
        assert_failed(&from_a_liar(image(), lie).await, Fault::Pull, words);
    }
    let none = about(Method::GET, layer(), |_, _| Some(response(302, &[], "")));
    assert_failed(&from_a_liar(image(), none).await, Fault::Pull, "without a place to go to");
}

#[tokio::test]
async fn redirect_to_itself_ends() {
    let lie = about(Method::GET, layer(), |asked, _| Some(response(302, &[("location", asked.uri.path())], "")));
    assert_failed(&from_a_liar(image(), lie).await, Fault::Pull, "is redirected more than 5 times");
}

#[tokio::test]
async fn password_does_not_go_along_a_redirect() {
    let (cdn, target) = (Fake::serving(image(), honest()).await, Fake::empty().await);
    let place = format!("http://{}/v2/team/app/blobs/{}?sig=1", cdn.address, layer());
    let lie = about(Method::GET, layer(), move |_, _| Some(response(307, &[("location", &place)], "")));
    let password = format!("Basic {}", base64_of(&format!("me:{PASSWORD}")));
    let basic: Lie = Box::new(move |asked, before| {
        if asked.headers.get("authorization").is_none_or(|sent| *sent != password) {
            return Some(response(401, &[("www-authenticate", r#"Basic realm="x""#)], ""));
        }
        lie(asked, before)
    });
    let source = Fake::serving(image(), basic).await;
    let mut copy = copy_of(&source.address, &target.address);
    copy.source_credentials = vec![me()];
    copy.hosts = vec![cdn.address.clone()];
    run(&copy).await.unwrap();
    let asked = cdn.store.asked.lock().unwrap().clone();
    assert_eq!(asked, [(format!("GET /v2/team/app/blobs/{}", layer()), None)]);
}

#[tokio::test]
async fn upload_stays_at_the_target() {
    for (place, words) in [
        ("https://169.254.169.254/upload?x=1", "wants the upload at 169.254.169.254, which is not among"),
        ("http://storage.example/upload?x=1", "wants the upload at storage.example without HTTPS"),
        ("http://127.0.0.1:1/upload", "wants the upload at 127.0.0.1:1, which is not among"),
        ("https://", "without a place to go to"),
    ] {
        let lie = about(Method::POST, "uploads", move |_, _| Some(response(202, &[("location", place)], "")));
        assert_failed(&to_a_liar(lie).await, Fault::Push, words);
    }
    let lie =
        about(Method::PUT, "uploads", |_, _| Some(response(307, &[("location", "https://169.254.169.254/")], "")));
    assert_failed(&to_a_liar(lie).await, Fault::Push, "307");
}

#[tokio::test]
async fn token_that_ends_midway_is_renewed_for_all() {
    let (first, second) = (with_tokens("0"), with_tokens("1"));
    let lie: Lie = Box::new(move |asked, before| {
        let is_later = asked.uri.path().contains("/blobs/");
        if is_later { second(asked, before) } else { first(asked, before) }
    });
    let (source, target) = (Fake::serving(image(), lie).await, Fake::empty().await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.source_credentials = vec![me()];
    run(&copy).await.unwrap();
    assert_eq!(source.asked("GET /token"), 2);
}

#[tokio::test]
async fn target_that_gives_tokens_takes_the_image() {
    let (source, target) =
        (Fake::serving(image(), honest()).await, Fake::serving(Image::default(), with_tokens("0")).await);
    let mut copy = copy_of(&source.address, &target.address);
    copy.target.credentials = Some(me());
    run(&copy).await.unwrap();
    assert_eq!(target.asked("GET /token"), 1);
    assert!(source.store.asked.lock().unwrap().iter().all(|(_, authorization)| authorization.is_none()));
}
