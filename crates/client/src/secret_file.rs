//! Secrets of a server in a container: a file within it, which becomes the server's environment.
//!
//! An engine shows a container's environment to anyone who may call its API. A bind-mounted file would have to be
//! readable for the container's user, who is unknown on this machine. So the file is unpacked within the container
//! before it starts. It goes with the container, and a restart finds it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use candlepower_machine::print_error;

/// The hidden command of the binary that runs another command with the secrets of a file.
#[cfg(feature = "docker")]
pub(crate) const RUN_WITH_SECRETS: &str = "__secrets";
/// The file's path in the container.
#[cfg(feature = "docker")]
pub(crate) const SECRETS_FILE: &str = "/candlepower.secrets";

/// Becomes the command that follows the file's path in `args`, with the variables of the file in its environment.
pub fn run_with_secrets(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let file = args.next().unwrap_or_default();
    let read =
        std::fs::read(Path::new(&file)).map_err(|error| error.to_string()).and_then(|bytes| {
            // The parser's error would show a part of the file.
            let variables = serde_json::from_slice::<BTreeMap<String, String>>(&bytes);
            variables.map_err(|_| "the file is damaged".to_owned())
        });
    match read {
        Ok(variables) => {
            let error = Command::new("/proc/self/exe")
                .arg0("candlepower")
                .args(args)
                .envs(variables)
                .exec();
            print_error(format_args!("error: the server cannot be started: {error}"));
        }
        Err(error) => print_error(format_args!(
            "error: the secrets in {} cannot be read: {error}",
            file.display()
        )),
    }
    ExitCode::FAILURE
}

/// The secrets of an archive with the file.
#[cfg(feature = "docker")]
pub(crate) fn unpacked(archive: &[u8]) -> std::io::Result<crate::secret::Secrets> {
    let mut archive = tar::Archive::new(archive);
    let file = archive.entries()?.next().ok_or(std::io::ErrorKind::NotFound)??;
    // The parser's error would show a part of the file.
    serde_json::from_reader(file).map_err(|_| std::io::Error::other("the file is damaged"))
}

/// An archive with the file, readable for this user only, or for all users of the container if the user is not known.
#[cfg(feature = "docker")]
pub(crate) fn archive(
    secrets: &crate::secret::Secrets,
    uid: Option<u64>,
) -> std::io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(secrets)?;
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    // Within the container only the server runs, so even the wider mode shows the file to no one else.
    header.set_mode(if uid.is_some() { 0o400 } else { 0o444 });
    header.set_uid(uid.unwrap_or(0));
    header.set_gid(0);
    let mut archive = tar::Builder::new(Vec::new());
    // Names in an archive are relative to the folder in which it is unpacked.
    archive.append_data(&mut header, SECRETS_FILE.trim_start_matches('/'), bytes.as_slice())?;
    archive.into_inner()
}
