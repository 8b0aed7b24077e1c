//! Certificate files that cannot be used at the start.

use std::path::Path;

use crate::support::{Authority, ServerBuilder};

/// The only ERROR line of a start that is refused with these files.
fn refused(certificate: &Path, key: &Path, authorities: Option<&Path>) -> String {
    let builder = ServerBuilder::new("demo");
    let builder = builder.flag("--ssl-certfile", certificate).flag("--ssl-keyfile", key);
    let refused = match authorities {
        Some(path) => builder.flag("--ssl-ca-certs", path),
        None => builder,
    }
    .refused();
    assert_eq!(refused.code, Some(1));
    let mut lines = refused.message.lines().filter(|line| line.contains("ERROR"));
    let line = lines.next().unwrap_or_else(|| panic!("{}", refused.message)).to_owned();
    assert_eq!(lines.next(), None);
    line
}

#[test]
fn a_bad_file_is_named_with_what_is_wrong() {
    let authority = Authority::new();
    let pair = authority.sign("server");
    let (certificate, key) = (pair.certificate.as_path(), pair.key.as_path());
    let other = authority.sign("other").key;
    let missing = certificate.with_file_name("missing.pem");
    let garbage = authority.write("garbage.pem", "not PEM");
    let text = std::fs::read_to_string(certificate).unwrap();
    let torn = authority.write("torn.pem", &text[..text.len() / 2]);
    let begin = "-----BEGIN CERTIFICATE-----\n";
    let damaged =
        authority.write("damaged.pem", &format!("{begin}AAAA\n-----END CERTIFICATE-----\n"));
    for (certificate, key, authorities, flag, file, reason) in [
        (missing.as_path(), key, None, "--ssl-certfile", &missing, "No such file"),
        (&garbage, key, None, "--ssl-certfile", &garbage, "no certificate"),
        (&torn, key, None, "--ssl-certfile", &torn, "PEM"),
        (&damaged, key, None, "--ssl-certfile", &damaged, "certificate"),
        (key, key, None, "--ssl-certfile", &pair.key, "no certificate"),
        (certificate, &missing, None, "--ssl-keyfile", &missing, "No such file"),
        (certificate, &garbage, None, "--ssl-keyfile", &garbage, "private key"),
        (certificate, certificate, None, "--ssl-keyfile", &pair.certificate, "private key"),
        (certificate, &other, None, "--ssl-keyfile", &other, "it does not match the certificate"),
        (certificate, key, Some(garbage.as_path()), "--ssl-ca-certs", &garbage, "no certificate"),
        (certificate, key, Some(&damaged), "--ssl-ca-certs", &damaged, "certificate"),
    ] {
        let line = refused(certificate, key, authorities);
        let named = format!("{flag} {}", file.display());
        assert!(line.contains(&named) && line.contains(reason), "{flag} {reason}: {line}");
    }
}

#[test]
fn settings_that_need_each_other_are_named() {
    let pair = Authority::new().sign("server");
    for (flag, file, missing) in [
        ("--ssl-certfile", &pair.certificate, "--ssl-keyfile"),
        ("--ssl-keyfile", &pair.key, "--ssl-certfile"),
        ("--ssl-ca-certs", &pair.certificate, "--ssl-certfile and --ssl-keyfile"),
    ] {
        let refused = ServerBuilder::new("demo").flag(flag, file).refused();
        assert_eq!(refused.code, Some(1));
        let is_named = refused.message.contains(flag) && refused.message.contains(missing);
        assert!(is_named, "{}", refused.message);
    }
}
