//! GGUF files on the hub: chooses among a repository's files, and reads their headers before a download.

use std::io;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use candlepower_checkpoint::{CheckpointFiles, Gguf, WeightFiles};

use super::HubModel;
use crate::listing::{Listing, RemoteFile};
use crate::model_id::GgufName;
use crate::progress::DownloadProgress;
use crate::{Error, Result};

/// Most files that an error lists.
const MAX_LISTED: usize = 40;
/// Depth of folders in the cache that are searched for GGUF files.
const MAX_FOLDERS: usize = 3;

/// The reason that a name is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unclear {
    None,
    Several,
}

/// The files of the chosen model, in order.
pub(crate) fn choose<'a>(
    wanted: &GgufName,
    mut files: impl Iterator<Item = &'a str>,
) -> Result<Vec<String>, Unclear> {
    let first = match wanted {
        GgufName::Path(path) => files.find(|file| file == path).ok_or(Unclear::None)?,
        GgufName::End(end) => {
            // Later parts of a split model never match, since `Gguf::model_name` knows only the first file.
            let mut found = files.filter(|file| ends_with(file, end));
            match (found.next(), found.next()) {
                (None, _) => return Err(Unclear::None),
                (Some(file), None) => file,
                (Some(_), Some(_)) => return Err(Unclear::Several),
            }
        }
    };
    let (folder, name) = split_path(first);
    // All parts of a split model lie in one folder.
    Ok(Gguf::parts(name).into_iter().map(|name| format!("{folder}{name}")).collect())
}

/// Whether a path's file is a model whose name ends with `end`.
fn ends_with(path: &str, end: &str) -> bool {
    let Some(model) = Gguf::model_name(split_path(path).1) else { return false };
    let (model, end) = (model.to_ascii_lowercase(), end.to_ascii_lowercase());
    let before = model.strip_suffix(&end);
    // A whole word must match. Otherwise `Q4_NL` would mean a file with `IQ4_NL`.
    before.is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_']))
}

/// The folder of a path, with its slash, and the file's name.
pub(crate) fn split_path(path: &str) -> (&str, &str) {
    path.split_at(path.rfind('/').map_or(0, |slash| slash + 1))
}

/// Whether a path ends in `.gguf`.
fn is_gguf(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, ending)| ending.eq_ignore_ascii_case("gguf"))
}

/// Whether a path is a model's first file.
pub(crate) fn is_model(path: &str) -> bool {
    Gguf::model_name(split_path(path).1).is_some()
}

/// The paths of GGUF files below a folder, each with `prefix`.
fn files_below(folder: &Path, prefix: &str, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        // Links to folders are followed, and the depth ends a loop among them.
        if path.is_dir() && depth > 0 {
            found.extend(files_below(&path, &format!("{name}/"), depth - 1));
        } else if is_gguf(&name) && path.is_file() {
            found.push(name);
        }
    }
    found
}

impl HubModel {
    /// The only GGUF model of a repository, or of its part in the cache, if it has no weights in another format.
    pub(super) fn only_gguf(&self) -> Option<GgufName> {
        let files = match &self.listing {
            Some(listing) => listing.files.keys().cloned().collect(),
            None => files_below(&self.folder(), "", MAX_FOLDERS),
        };
        let names = files.iter().map(String::as_str);
        let has_others = match &self.listing {
            Some(_) => WeightFiles::named(names).is_some(),
            None => {
                let folder = CheckpointFiles::Folder(self.folder());
                // The cache may hold the description of a safetensors model whose weights are still missing.
                WeightFiles::find(&folder).is_ok() || self.folder().join("config.json").is_file()
            }
        };
        let mut models = files.iter().filter(|file| is_model(file));
        match (models.next(), models.next()) {
            (Some(only), None) if !has_others => {
                let only = GgufName::Path(only.clone());
                // In the cache, some parts of a split model may be missing.
                (self.listing.is_some() || self.cached_gguf(&only).is_some()).then_some(only)
            }
            _ => None,
        }
    }

    /// The files of the chosen model in the hub's listing.
    pub(super) fn choose_gguf(&self, wanted: &GgufName, listing: &Listing) -> Result<Vec<String>> {
        let files =
            choose(wanted, listing.files.keys().map(String::as_str)).map_err(|unclear| {
                let problem = match unclear {
                    Unclear::None => format!("has no GGUF file `{wanted}`"),
                    Unclear::Several => format!("has several GGUF files `{wanted}`"),
                };
                self.which_gguf(problem, listing)
            })?;
        match files.iter().find(|file| !listing.files.contains_key(*file)) {
            Some(missing) => Err(self.which_gguf(format!("has no GGUF file `{missing}`"), listing)),
            None => Ok(files),
        }
    }

    /// The files of the chosen model, if the cache has them all.
    pub(super) fn cached_gguf(&self, wanted: &GgufName) -> Option<Vec<String>> {
        let cached = files_below(&self.folder(), "", MAX_FOLDERS);
        let files = choose(wanted, cached.iter().map(String::as_str)).ok()?;
        files.iter().all(|file| cached.contains(file)).then_some(files)
    }

    /// The error for a repository that has weights in GGUF files only; `None` if it has no such files.
    pub(super) fn no_gguf_named(&self, listing: &Listing) -> Option<Error> {
        let problem = || "has its weights in GGUF files, and none is named".to_owned();
        listing.files.keys().any(|file| is_model(file)).then(|| self.which_gguf(problem(), listing))
    }

    fn which_gguf(&self, problem: String, listing: &Listing) -> Error {
        let models: Vec<&str> =
            listing.files.keys().map(String::as_str).filter(|file| is_model(file)).collect();
        let id = self.id.to_string();
        if models.is_empty() {
            return Error::NoGguf { id, page: self.hub.asked(&self.id, &self.revision).page() };
        }
        let mut names = models[..models.len().min(MAX_LISTED)].join(", ");
        if models.len() > MAX_LISTED {
            names.push_str(&format!(" and {} more", models.len() - MAX_LISTED));
        }
        Error::WhichGguf { id, problem, names }
    }

    /// The description of the model in its files: read from the cache if the files are complete, otherwise from
    /// headers that the hub sends.
    pub(super) async fn read_gguf(&self, names: &[String]) -> Result<Gguf> {
        let first = self.folder().join(&names[0]);
        let Some(listing) = &self.listing else { return Ok(Gguf::open(&first)?) };
        let files: Vec<&RemoteFile> = names.iter().map(|name| &listing.files[name]).collect();
        if files.iter().all(|file| self.cache.has(&self.commit, file)) {
            return Ok(Gguf::open(&first)?);
        }
        let folder = first.parent().expect("a file lies in a folder").to_owned();
        let lens: Vec<(String, u64)> =
            files.iter().map(|file| (split_path(&file.name).1.to_owned(), file.size)).collect();
        // The parser starts over with each part that has arrived, until it needs no more. The size of a header is not
        // known before.
        let mut parts: Vec<(String, Range<u64>, Bytes)> = Vec::new();
        loop {
            let mut missing = None;
            let mut read = |name: &str, range: Range<u64>| {
                let known = parts.iter().find(|part| part.0 == name && part.1 == range);
                if known.is_none() {
                    missing = Some((name.to_owned(), range));
                }
                known.map(|part| part.2.to_vec()).ok_or_else(|| io::Error::other("not here yet"))
            };
            let gguf = Gguf::read(folder.clone(), lens.clone(), &mut read);
            // An error of the parser counts only if it had all the bytes that it asked for.
            let Some((name, range)) = missing else { return Ok(gguf?) };
            let file = files.iter().find(|file| split_path(&file.name).1 == name);
            let file = file.expect("only these files are read");
            // The parts are not kept. Only a whole file has a digest, so the download starts from the beginning.
            let progress = DownloadProgress::default().add(&file.name, file.size);
            let download = self.download(file, &progress);
            let bytes = self.hub.0.transfer.part(&download, range.clone()).await?;
            parts.push((name, range, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_meant_by_its_path_or_by_how_its_name_ends() {
        let files = [
            "config.json",
            "m-Q4_0.gguf",
            "m-Q4_0_4_4.gguf",
            "m-Q4_K_M.gguf",
            "m-UD-Q4_K_M.gguf",
            "m.f16.gguf",
            "mmproj-m-Q8_0.gguf",
            "Q8_0/m-Q8_0-00001-of-00002.gguf",
            "Q8_0/m-Q8_0-00002-of-00002.gguf",
        ];
        let end = |end: &str| choose(&GgufName::End(end.into()), files.into_iter());
        let path = |path: &str| choose(&GgufName::Path(path.into()), files.into_iter());
        let split = ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"];
        assert_eq!(end("Q4_0").unwrap(), ["m-Q4_0.gguf"]);
        assert_eq!(end("ud-q4_k_m").unwrap(), ["m-UD-Q4_K_M.gguf"]);
        assert_eq!(end("F16").unwrap(), ["m.f16.gguf"]);
        assert_eq!(end("Q8_0").unwrap(), split);
        // The file with `UD-` has the same end after a hyphen, so the longer name must be given.
        assert_eq!(end("Q4_K_M"), Err(Unclear::Several));
        for unknown in ["Q5_K_M", "0_4", "gguf"] {
            assert_eq!(end(unknown), Err(Unclear::None), "{unknown}");
        }
        assert_eq!(path("m-Q4_K_M.gguf").unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(path(split[1]).unwrap(), split);
        assert_eq!(path("m-Q8_0.gguf"), Err(Unclear::None));
    }
}
