//! Keys from flags and from files, their limits, and reloading.

use clap::{Args, Command, FromArgMatches};

use super::*;

/// A key file, which is removed on drop.
struct TempFile(std::path::PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("candlepower-keys-{}-{name}.toml", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).unwrap();
    }

    fn config(&self) -> ServeConfig {
        config(&["--api-keys-file", self.0.to_str().unwrap()])
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn config(argv: &[&str]) -> ServeConfig {
    let command = ServeConfig::augment_args(Command::new("serve").no_binary_name(true));
    let argv = ["demo"].iter().chain(argv);
    ServeConfig::from_arg_matches(&command.try_get_matches_from(argv).unwrap()).unwrap()
}

#[test]
fn keys_of_the_command_line_are_numbered() {
    let keys = ApiKeys::load(&config(&["--api-key", "one", "--api-key=two"])).unwrap();
    assert_eq!(keys.describe(), "key-1, key-2");
    assert_eq!(keys.find(b"two").unwrap().name, "key-2");
    // The last one is the name of the key, not the key.
    for sent in [&b""[..], b"on", b"oneone", b"onE", b"key-1"] {
        assert!(keys.find(sent).is_none());
    }
    let same = ApiKeys::load(&config(&["--api-key=one", "--api-key=one"])).err().unwrap();
    assert_eq!(same.to_string(), "--api-key: `key-1` and `key-2` are the same key");
}

#[test]
fn a_file_names_keys_and_their_limits() {
    // The digest of "abc" by FIPS 180-2, appendix B.1.
    let file = TempFile::new(
        "limits",
        r#"
        [[key]]
        name = "ann@example.com"
        key = "secret of ann"
        max_concurrent = 8
        max_tokens_per_minute = 100_000
        weight = 4
        min_priority = -10
        admin = true

        [[key]]
        name = "bob"
        sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015AD"
        "#,
    );
    let keys = ApiKeys::load(&file.config()).unwrap();
    let ann = keys.find(b"secret of ann").unwrap();
    let expected = KeyLimits {
        max_concurrent: Some(8),
        max_tokens_per_minute: Some(100_000),
        weight: NonZeroU32::new(4).unwrap(),
        min_priority: Some(-10),
        admin: true,
    };
    assert_eq!((ann.name.as_str(), &ann.limits), ("ann@example.com", &expected));
    assert_eq!((ann.caller_priority(-20), ann.caller_priority(5)), (-10, 5));
    let bob = keys.find(b"abc").unwrap();
    assert_eq!((bob.name.as_str(), &bob.limits), ("bob", &KeyLimits::default()));
    assert_eq!(bob.caller_priority(-20), 0);
    assert_eq!(
        keys.describe(),
        "ann@example.com (max_concurrent 8, max_tokens_per_minute 100000, weight 4, min_priority -10, admin), bob"
    );
}

#[test]
fn errors_name_the_place_and_show_no_key() {
    for (text, problem) in [
        ("", "it has no keys: add a table [[key]] for each"),
        ("[[key]]\nname = \"a\"", "the key `a` at line 1: it has neither `key` nor `sha256`"),
        ("\n[[key]]\nkey = \"canary\"", "the key `?` at line 2: it has no `name`"),
        ("[[key]]\nname = \"a b\"\nkey = \"canary\"", "`name` must have 1 to 64"),
        ("[[key]]\nname = \"a\"\nkey = \"\"", "`key` is empty"),
        ("[[key]]\nname = \"a\"\nkey = \"canary \"", "`key` begins or ends with a space"),
        ("[[key]]\nname = \"a\"\nkey = [\"canary\"]", "`key` must be a string"),
        ("[[key]]\nname = \"a\"\nsha256 = \"canary\"", "`sha256` must have 64 hexadecimal digits"),
        ("[[key]]\nname = \"a\"\nsha256 = \"a\"\nkey = \"canary\"", "both `key` and `sha256`"),
        ("[[key]]\nname = \"a\"\nkey = \"canary\"\nweight = 0", "from 1 to 1000"),
        ("[[key]]\nname = \"a\"\nkey = \"canary\"\nadmin = \"canary\"", "true or false"),
        ("[[key]]\nname = \"a\"\nkey = \"canary\"\nmax = 1", "unknown field `max`"),
        ("[[key]]\nname = \"a\"\nkey = \"canary", "line 3: "),
        ("[[keys]]\nname = \"a\"\nkey = \"canary\"", "unknown field `keys`"),
        (
            "[[key]]\nname = \"a\"\nkey = \"canary\"\n[[key]]\nname = \"a\"\nkey = \"b\"",
            "two keys have the name `a`",
        ),
        (
            "[[key]]\nname = \"a\"\nkey = \"canary\"\n[[key]]\nname = \"b\"\nkey = \"canary\"",
            "`a` and `b` are the same key",
        ),
    ] {
        let file = TempFile::new("errors", text);
        let error = ApiKeys::load(&file.config()).err().unwrap().to_string();
        assert!(error.contains(problem), "{text}: {error}");
        assert!(error.starts_with(&file.0.display().to_string()), "{error}");
        assert!(!error.contains("canary"), "{error}");
    }
    let missing = ApiKeys::load(&config(&["--api-keys-file=/no/such/file"])).err().unwrap();
    let missing = missing.to_string();
    assert!(missing.starts_with("/no/such/file: the file of --api-keys-file "), "{missing}");
}

#[test]
fn a_file_of_ten_thousand_keys_is_read_and_a_larger_one_is_not() {
    let entry = |i: usize| format!("[[key]]\nname = \"n{i}\"\nkey = \"k{i}\"\n");
    let text: String = (0..10_000).map(entry).collect();
    let file = TempFile::new("many", &text);
    let keys = ApiKeys::load(&file.config()).unwrap();
    assert_eq!(keys.find(b"k9999").unwrap().name, "n9999");
    assert!(keys.describe().ends_with(" and 9980 more"));
    let error = || ApiKeys::load(&file.config()).err().unwrap().to_string();
    // The text after the number sign is a comment of 5 MiB, so only the size refuses it.
    file.write(&(text + &entry(10_000)));
    assert!(error().contains("more than 10000 keys"), "{}", error());
    file.write(&"#".repeat(5 << 20));
    assert!(error().contains("more than 4 MiB"), "{}", error());
    // A parser that recurses for each bracket would overflow the stack here.
    let deep = format!("a = {}", "[".repeat(100_000));
    file.write(&deep);
    assert!(error().contains("line 1: "), "{}", error());
}

#[test]
fn a_file_is_read_again_and_a_bad_one_changes_nothing() {
    let entry = |name: &str, rest: &str| format!("[[key]]\nname = \"{name}\"\n{rest}\n");
    let file = TempFile::new("reload", &entry("a", "key = \"one\"\nmax_concurrent = 1"));
    let config = file.config();
    let keys = ApiKeys::load(&config).unwrap();
    let metrics = Metrics::new(None, "m");
    let held = keys.find(b"one").unwrap().admit(1, 3, &metrics).unwrap();
    file.write("[[key]]\nname = 1");
    keys.reload(&config).unwrap_err();
    assert!(keys.find(b"one").is_some());
    // Another key of the same owner, who still has a running sequence.
    file.write(&entry("a", "key = \"two\"\nmax_concurrent = 1"));
    keys.reload(&config).unwrap();
    assert!(keys.find(b"one").is_none());
    let key = keys.find(b"two").unwrap();
    assert!(key.check().is_err());
    drop(held);
    key.check().unwrap();
}

#[test]
fn refusals_name_the_limit_and_the_key() {
    let text =
        "[[key]]\nname = \"ann\"\nkey = \"k\"\nmax_concurrent = 2\nmax_tokens_per_minute = 60";
    let file = TempFile::new("refusals", text);
    let keys = ApiKeys::load(&file.config()).unwrap();
    let (key, metrics) = (keys.find(b"k").unwrap(), Metrics::new(None, "m"));
    let message = |error: ApiError| error.to_body().error.message;
    let never = message(key.admit(3, 1, &metrics).unwrap_err());
    assert!(
        never.contains("3 concurrent sequences") && never.contains("`max_concurrent`"),
        "{never}"
    );
    let places = key.admit(2, 30, &metrics).unwrap();
    let full = message(key.check().unwrap_err());
    assert!(full.contains("`ann` has 2 concurrent sequences"), "{full}");
    places.iter().for_each(|place| (0..20).for_each(|_| place.count_token()));
    drop(places);
    let spent = message(key.check().unwrap_err());
    // 60 tokens a minute are one a second: 30 of the prompt and 40 generated are 10 too many.
    assert!(spent.contains("60 tokens per minute") && spent.contains("in 1"), "{spent}");
    let text = metrics.render();
    for line in [
        "candlepower_key_prompt_tokens_total{key=\"ann\"} 30",
        "candlepower_key_generation_tokens_total{key=\"ann\"} 40",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}
