//! Image files as `data:` URLs.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// Maximum bytes of a file. Servers refuse requests of more than 32 MiB, and the URL is a third longer than the file.
const MAX_BYTES: u64 = 20 << 20;

/// The beginnings of files, by which formats are known.
const FORMATS: [(&str, &[u8]); 5] = [
    ("image/png", b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", b"\xff\xd8\xff"),
    ("image/gif", b"GIF87a"),
    ("image/gif", b"GIF89a"),
    ("image/webp", b"RIFF"),
];

/// Reads a file.
///
/// # Errors
/// The file cannot be read, is too large, or is of no format that models take.
pub(super) fn data_url(path: &Path) -> Result<String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(|| format!("{shown} cannot be read"))?;
    // Reading anything else, such as a pipe, might never end.
    if !file.metadata()?.is_file() {
        bail!("{shown} is not a file");
    }
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("{shown} cannot be read"))?;
    if bytes.len() as u64 > MAX_BYTES {
        bail!("{shown} has more than {} MiB", MAX_BYTES >> 20);
    }
    let Some((format, _)) = FORMATS.iter().find(|(_, start)| bytes.starts_with(start)) else {
        bail!("{shown} is no PNG, JPEG, WebP or GIF");
    };
    Ok(format!("data:{format};base64,{}", BASE64_STANDARD.encode(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_pictures_are_named_with_the_reason() {
        let folder =
            std::env::temp_dir().join(format!("candlepower-images-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (text, large, gif) = (folder.join("a.txt"), folder.join("b.png"), folder.join("c.gif"));
        std::fs::write(&text, "text").unwrap();
        File::create(&large).unwrap().set_len(MAX_BYTES + 1).unwrap();
        std::fs::write(&gif, "GIF89a").unwrap();
        let refused = [&folder, &text, &large, &folder.join("none.png")].map(|path| {
            let error = data_url(path).unwrap_err().to_string();
            error.strip_prefix(&path.display().to_string()).unwrap().to_owned()
        });
        let read = data_url(&gif).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let reasons = [
            " is not a file",
            " is no PNG, JPEG, WebP or GIF",
            " has more than 20 MiB",
            " cannot be read",
        ];
        assert_eq!(refused, reasons);
        assert_eq!(read, "data:image/gif;base64,R0lGODlh");
    }
}
