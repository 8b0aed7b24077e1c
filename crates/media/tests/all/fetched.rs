//! URLs against a server on loopback: beside each refusal, the same server answers a URL that is allowed.

mod server;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use candlepower_media::{
    Encoded, Error, ErrorKind, FetchPolicy, Fetcher, Format, Limits, Resolver, address_refusal,
};
use futures::future::BoxFuture;
use server::Server;

use crate::support::{bytes, data};

/// Maps names to addresses; other names have none.
#[derive(Debug)]
struct Names(Vec<(&'static str, Vec<IpAddr>)>);

impl Resolver for Names {
    fn addresses(&self, host: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
        let found = self.0.iter().find(|(name, _)| *name == host).map(|(_, found)| found.clone());
        Box::pin(async move { found.ok_or_else(|| std::io::ErrorKind::NotFound.into()) })
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Names of one server, of which only those at 127.0.0.1 are trusted.
fn names() -> Names {
    Names(vec![
        ("pictures.example", vec![address("127.0.0.1")]),
        ("cdn.pictures.example", vec![address("127.0.0.1")]),
        ("unlisted.example", vec![address("127.0.0.1")]),
        ("loopback.example", vec![address("127.0.0.2")]),
        ("private.example", vec![address("10.1.2.3")]),
        ("metadata.example", vec![address("169.254.169.254")]),
        ("multicast.example", vec![address("224.0.0.1")]),
        ("mapped.example", vec![address("::ffff:127.0.0.1")]),
        ("nat64.example", vec![address("64:ff9b::7f00:1")]),
        ("local6.example", vec![address("fd00:ec2::254")]),
        ("loopback6.example", vec![address("::1")]),
        ("any.example", vec![address("0.0.0.0")]),
        ("mixed.example", vec![address("127.0.0.1"), address("127.0.0.2")]),
    ])
}

/// A fetcher that may reach `server` by every name of the list, and by some addresses.
fn fetcher(server: &Server, change: impl FnOnce(&mut FetchPolicy)) -> Fetcher {
    let names = names();
    let listed = names.0.iter().map(|(name, _)| *name).filter(|name| !name.starts_with("unlisted"));
    let hosts =
        listed.chain(["127.0.0.1", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]", "absent.example"]);
    let domains = hosts.map(|host| format!("{host}:{}", server.port()).parse().unwrap());
    let mut policy = FetchPolicy {
        domains: domains.collect(),
        trusted_addresses: vec![address("127.0.0.1")],
        timeout: Duration::from_secs(60),
        ..FetchPolicy::default()
    };
    change(&mut policy);
    Fetcher::new(policy, Arc::new(names)).unwrap()
}

/// The allowed URL, which must go on working.
async fn check_allowed(fetcher: &Fetcher, server: &Server) {
    let url = format!("http://pictures.example:{}/picture", server.port());
    let image = fetcher.fetch(&url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    assert_eq!((image.format(), &image.bytes()[..]), (Format::Png, &bytes("png/rgb8.png")[..]));
}

#[tokio::test]
async fn hosts_that_are_not_allowed_are_never_asked() {
    let server = Server::start();
    let fetcher = fetcher(&server, |_| ());
    let port = server.port();
    for (url, reason) in [
        (format!("http://unlisted.example:{port}/picture"), "does not list it"),
        (format!("http://pictures.example.evil.org:{port}/picture"), "does not list it"),
        (format!("http://evilpictures.example:{port}/picture"), "does not list it"),
        (format!("http://127.0.0.3:{port}/picture"), "does not list it"),
        (format!("http://localhost:{port}/picture"), "does not list it"),
        ("http://pictures.example/picture".to_owned(), "does not list it with port 80"),
        ("https://pictures.example/picture".to_owned(), "does not list it with port 443"),
        (format!("http://pictures.example:{}/picture", port ^ 1), "does not list it with port"),
        (format!("http://loopback.example:{port}/picture"), "an address that is loopback"),
        (format!("http://private.example:{port}/picture"), "an address that is private"),
        (format!("http://metadata.example:{port}/picture"), "an address that is link-local"),
        (format!("http://multicast.example:{port}/picture"), "an address that is multicast"),
        (format!("http://mapped.example:{port}/picture"), "an address that is IPv4-mapped"),
        (format!("http://nat64.example:{port}/picture"), "an address that is NAT64"),
        (format!("http://local6.example:{port}/picture"), "an address that is unique local"),
        (format!("http://loopback6.example:{port}/picture"), "an address that is loopback"),
        (format!("http://any.example:{port}/picture"), "an address that is unspecified"),
        (format!("http://mixed.example:{port}/picture"), "an address that is loopback"),
        (format!("http://127.0.0.2:{port}/picture"), "an address that is loopback"),
        // Other ways to write 127.0.0.2, which the one parser knows.
        (format!("http://0x7f.2:{port}/picture"), "an address that is loopback"),
        (format!("http://2130706434:{port}/picture"), "an address that is loopback"),
        (format!("http://0177.0.0.02:{port}/picture"), "an address that is loopback"),
        (format!("http://127.0.0.2.:{port}/picture"), "an address that is loopback"),
        (format!("http://\u{ff11}27.0.0.\u{ff12}:{port}/picture"), "an address that is loopback"),
        (format!("http://127%2e0.0.2:{port}/picture"), "an address that is loopback"),
        (format!("http:/\t/127.0.0.2:{port}/pic\nture"), "an address that is loopback"),
        (format!("http:127.0.0.2:{port}/picture"), "an address that is loopback"),
        (format!("http://[::1]:{port}/picture"), "an address that is loopback"),
        (format!("http://[::ffff:127.0.0.1]:{port}/picture"), "an address that is IPv4-mapped"),
        (format!("http://user@pictures.example:{port}/picture"), "has a user or a password"),
        (format!("http://pictures.example:{port}@unlisted.example:{port}/picture"), "has a user"),
        (format!("http://unlisted.example:{port}\\@pictures.example/picture"), "does not list it"),
        (format!("http://unlisted.example:{port}/#@pictures.example"), "does not list it"),
    ] {
        server.forget();
        let error = fetcher.fetch(&url).await.expect_err(&url);
        assert_eq!(server.requests(), 0, "{url}: {error}");
        assert!(error.to_string().contains(reason), "{url}: {error}");
        check_allowed(&fetcher, &server).await;
    }
}

#[tokio::test]
async fn hosts_below_a_domain_are_allowed_by_its_suffix() {
    let server = Server::start();
    let port = server.port();
    let fetcher = fetcher(&server, |policy| {
        policy.domains = vec![format!(".pictures.example:{port}").parse().unwrap()];
    });
    assert!(fetcher.fetch(&format!("http://cdn.pictures.example:{port}/picture")).await.is_ok());
    assert!(fetcher.fetch(&format!("http://CDN.Pictures.Example:{port}/picture")).await.is_ok());
    let bare = fetcher.fetch(&format!("http://pictures.example:{port}/picture")).await;
    assert!(matches!(bare, Err(Error::HostNotAllowed { .. })), "{bare:?}");
}

#[tokio::test]
async fn other_urls_are_refused() {
    let server = Server::start();
    let fetcher = fetcher(&server, |_| ());
    for (url, words) in [
        ("", "is no URL"),
        ("picture.png", "is no URL"),
        ("//pictures.example/picture", "is no URL"),
        ("ftp://pictures.example/picture", "a scheme that is not read"),
        ("gopher://pictures.example/", "a scheme that is not read"),
        ("javascript:alert(1)", "a scheme that is not read"),
        ("http://", "is no URL"),
        ("http://a b/", "is no URL"),
        ("file:///etc/passwd", "file URLs are not read"),
        (&format!("http://pictures.example/{}", "a".repeat(9_000)), "longer than 8 KiB"),
    ] {
        let error = fetcher.fetch(url).await.expect_err(url);
        assert!(error.to_string().contains(words), "{url:.100}: {error}");
    }
    check_allowed(&fetcher, &server).await;
    // Without a policy nothing but `data:` is read.
    let closed = Fetcher::new(FetchPolicy::default(), Arc::new(names())).unwrap();
    for url in ["http://pictures.example/picture", "https://a.example/", "file:///a.png"] {
        let error = closed.fetch(url).await.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::NotAllowed, "{url}: {error}");
    }
}

#[tokio::test]
async fn redirects_stay_on_their_host_and_are_checked_again() {
    let server = Server::start();
    let fetcher = fetcher(&server, |_| ());
    let port = server.port();
    let base = format!("http://pictures.example:{port}");
    for path in ["/to?/picture", "/hops/1", "/hops/3"] {
        let image = fetcher.fetch(&format!("{base}{path}")).await;
        assert!(image.is_ok(), "{path}: {image:?}");
    }
    for (path, words) in [
        ("/hops/4".to_owned(), "more than three times"),
        ("/loop".to_owned(), "more than three times"),
        (format!("/to?http://cdn.pictures.example:{port}/picture"), "to another host"),
        (format!("/to?http://127.0.0.1:{port}/picture"), "to another host"),
        (format!("/to?//unlisted.example:{port}/picture"), "to another host"),
        (format!("/to?http://169.254.169.254:{port}/picture"), "to another host"),
        ("/to?http://pictures.example/picture".to_owned(), "does not list it with port 80"),
        (format!("/to?http://user:word@pictures.example:{port}/picture"), "a user or a password"),
        ("/to?file:///etc/passwd".to_owned(), "to another host"),
        ("/to?data:image/png;base64,AA".to_owned(), "to another host"),
        ("/to?".to_owned(), "more than three times"),
        ("/no-location".to_owned(), "to nowhere"),
    ] {
        let error = fetcher.fetch(&format!("{base}{path}")).await.expect_err(&path);
        assert!(error.to_string().contains(words), "{path}: {error}");
        check_allowed(&fetcher, &server).await;
    }
}

#[tokio::test]
async fn answers_are_bounded_in_bytes_and_time() {
    let server = Server::start();
    let patient = fetcher(&server, |policy| {
        policy.timeout = Duration::from_secs(60);
        policy.limits.max_encoded_bytes = 1 << 20;
    });
    let hasty = fetcher(&server, |policy| policy.timeout = Duration::from_millis(300));
    let base = format!("http://pictures.example:{}", server.port());
    for (path, kind, words) in [
        ("/declared-huge", ErrorKind::TooLarge, "at most 1 MiB are read"),
        ("/endless", ErrorKind::TooLarge, "at most 1 MiB are read"),
        ("/silent", ErrorKind::Timeout, "longer than 0.3 seconds"),
        ("/drips", ErrorKind::Timeout, "longer than 0.3 seconds"),
        ("/cut", ErrorKind::Unreachable, "ended before the image did"),
        ("/garbage", ErrorKind::Unreachable, "gives no valid answer"),
        ("/missing", ErrorKind::Unreachable, "answered with status 404"),
        ("/partial", ErrorKind::Unreachable, "answered with status 206"),
        ("/page", ErrorKind::Unsupported, "none of PNG, JPEG, GIF and WebP"),
        ("/gzip", ErrorKind::Unsupported, "none of PNG, JPEG, GIF and WebP"),
        ("/empty", ErrorKind::Unsupported, "none of PNG, JPEG, GIF and WebP"),
    ] {
        let fetcher = if kind == ErrorKind::Timeout { &hasty } else { &patient };
        let error = fetcher.fetch(&format!("{base}{path}")).await.expect_err(path);
        assert_eq!(error.kind(), kind, "{path}: {error}");
        assert!(error.to_string().contains(words), "{path}: {error}");
        check_allowed(&patient, &server).await;
    }
    // A wrong media type of a web server does no harm.
    assert!(patient.fetch(&format!("{base}/mislabelled")).await.is_ok());
    let absent = patient.fetch(&format!("http://absent.example:{}/picture", server.port())).await;
    assert!(matches!(absent, Err(Error::Unreachable { .. })), "{absent:?}");
}

#[tokio::test]
async fn nothing_that_identifies_us_is_sent() {
    let server = Server::start();
    let fetcher = fetcher(&server, |_| ());
    check_allowed(&fetcher, &server).await;
    let head = server.last_head().to_ascii_lowercase();
    for name in ["cookie:", "authorization:", "referer:", "accept-encoding:", "proxy-"] {
        assert!(!head.contains(name), "{head}");
    }
    assert!(head.contains("user-agent: candlepower/"), "{head}");
}

/// A proxy would resolve names itself, and go where they lead.
#[test]
fn a_proxy_in_the_environment_is_not_used() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "fetched::nothing_that_identifies_us_is_sent"]);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
    {
        // Nobody listens at this port.
        child.env(name, "http://127.0.0.1:9");
    }
    let output = child.env_remove("no_proxy").env_remove("NO_PROXY").output().unwrap();
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && words.contains("1 passed"), "{words}");
}

#[tokio::test]
async fn data_urls_are_always_read() {
    let fetcher = Fetcher::new(FetchPolicy::default(), Arc::new(names())).unwrap();
    let png = base64(&bytes("png/rgb8.png"));
    for url in [
        format!("data:image/png;base64,{png}"),
        format!("DATA:;BASE64,{png}"),
        format!("data:application/octet-stream;base64,{png}"),
        format!("data:image/PNG;name=a.png;base64,{}", png.trim_end_matches('=')),
    ] {
        let image = fetcher.fetch(&url).await.unwrap_or_else(|error| panic!("{url:.60}: {error}"));
        assert_eq!(image.format(), Format::Png);
    }
    for (url, words) in [
        (format!("data:image/jpeg;base64,{png}"), "is image/jpeg, but the bytes are image/png"),
        (format!("data:image/svg+xml;base64,{png}"), "`image/svg+xml` is not read"),
        (format!("data:text/html;base64,{png}"), "`text/html` is not read"),
        (format!("data:image/png,{png}"), "is not in base64"),
        ("data:image/png;base64".to_owned(), "has no comma"),
        ("data:image/png;base64,****".to_owned(), "is not valid base64"),
        ("data:image/png;base64,".to_owned(), "none of PNG, JPEG, GIF and WebP"),
        (format!("data:image/png;base64,{}", "A".repeat(45 << 20)), "at most 32 MiB are read"),
    ] {
        let error = fetcher.fetch(&url).await.expect_err(&url[..url.len().min(80)]);
        assert!(error.to_string().contains(words), "{url:.60}: {error}");
    }
    // Blocks that name their media type apart from the data.
    let limits = Limits::default();
    assert!(Encoded::from_base64(&png, Some("image/png"), &limits).is_ok());
    assert!(Encoded::from_base64(&png, Some("image/webp"), &limits).is_err());
}

/// Base64 by its definition, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let of_three = |three: &[u8]| {
        let number = three.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        let number = number << (8 * (3 - three.len()));
        let digit = |index: usize| DIGITS[(number >> (18 - 6 * index) & 63) as usize] as char;
        (0..4)
            .map(|index| if index <= three.len() { digit(index) } else { '=' })
            .collect::<String>()
    };
    bytes.chunks(3).map(of_three).collect()
}

/// A folder that is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("candlepower-media-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A rest in a temporary folder is no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn files_are_read_below_the_allowed_folder() {
    let folder = Folder::new("files");
    let root = folder.0.join("root");
    std::fs::create_dir_all(root.join("inner")).unwrap();
    std::fs::copy(data("png/rgb8.png"), root.join("inner/a b.png")).unwrap();
    std::fs::copy(data("png/rgb8.png"), folder.0.join("outside.png")).unwrap();
    std::os::unix::fs::symlink(folder.0.join("outside.png"), root.join("out.png")).unwrap();
    std::os::unix::fs::symlink(root.join("inner/a b.png"), root.join("in.png")).unwrap();
    let huge = std::fs::File::create(root.join("huge.png")).unwrap();
    huge.set_len(33 << 20).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(root.join("pipe.png")).status();
    assert!(pipe.unwrap().success());
    let policy = FetchPolicy { local_root: Some(root.clone()), ..FetchPolicy::default() };
    let fetcher = Fetcher::new(policy, Arc::new(names())).unwrap();
    let (root, base) = (root.display(), folder.0.display());
    for url in [
        format!("file://{root}/inner/a%20b.png"),
        format!("file://localhost{root}/inner/../inner/a%20b.png"),
        format!("file://{root}/in.png"),
    ] {
        assert!(fetcher.fetch(&url).await.is_ok(), "{url}");
    }
    for url in [
        format!("file://{base}/outside.png"),
        format!("file://{root}/../outside.png"),
        format!("file://{root}/%2e%2e/outside.png"),
        format!("file://{root}/inner/%2e%2e%2f%2e%2e%2foutside.png"),
        format!("file://{root}/out.png"),
        format!("file://{root}/absent.png"),
        format!("file://{root}/inner"),
        format!("file://{root}/pipe.png"),
        format!("file://{root}2/outside.png"),
        "file:///dev/zero".to_owned(),
        "file:///etc/passwd".to_owned(),
        format!("file://host.example{root}/in.png"),
    ] {
        let error = fetcher.fetch(&url).await.expect_err(&url);
        assert_eq!(error, Error::FileNotAllowed, "{url}");
    }
    let error = fetcher.fetch(&format!("file://{root}/huge.png")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
}

#[test]
fn the_table_of_addresses_is_public() {
    assert_eq!(address_refusal(address("10.0.0.1")), Some("private"));
    assert_eq!(address_refusal(address("9.9.9.9")), None);
}
