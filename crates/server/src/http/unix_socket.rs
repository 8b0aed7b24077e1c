//! A Unix socket in the file system, on which a server listens.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixSocket};

/// Only the owner may connect.
const MODE: u32 = 0o600;

/// The file of a listening socket. It is removed on drop, unless another server has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl SocketFile {
    /// Creates the file and listens. A file that an ended server has left is replaced.
    ///
    /// # Errors
    /// Another server listens there, a file of another kind has this name, or the folder cannot be written.
    pub(crate) fn listen(path: &Path, backlog: u32) -> io::Result<(UnixListener, Self)> {
        remove_stale(path)?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        let file = Self { path: path.to_owned(), id: id(path)? };
        // Nobody can connect before `listen`, so the socket is at no time open to other users.
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        Ok((socket.listen(backlog)?, file))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if id(&self.path).is_ok_and(|found| found == self.id) {
            // The file may be gone, and nothing depends on it any more.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Removes the socket of a server that was killed.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    match UnixStream::connect(path) {
        Err(error) if is_socket && error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path)
        }
        // `bind` reports a name that is taken.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_belongs_to_one_server_and_goes_with_it() {
        let folder = std::env::temp_dir().join(format!("candlepower-uds-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.sock");
        let (listener, file) = SocketFile::listen(&path, 8).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        let taken = SocketFile::listen(&path, 8).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        // A killed server leaves the file.
        drop(listener);
        std::mem::forget(file);
        let (_listener, file) = SocketFile::listen(&path, 8).unwrap();
        drop(file);
        assert!(!path.exists());
        fs::write(&path, "text").unwrap();
        assert_eq!(SocketFile::listen(&path, 8).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(fs::read(&path).unwrap(), b"text");
        fs::remove_dir_all(folder).unwrap();
    }
}
