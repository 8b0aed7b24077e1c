//! Kubernetes: whether this process runs in a cluster, or a file describes access to one. No cluster is asked.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Folder of a pod's service account. Source: Kubernetes, "Accessing the API from a Pod".
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The cluster that this process would use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "found", rename_all = "snake_case")]
pub enum Kubernetes {
    /// This process runs in a pod with a service account.
    InCluster {
        /// The pod's namespace.
        namespace: Option<String>,
    },
    /// A file names clusters.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The context that it uses.
        current_context: Option<String>,
    },
}

impl Kubernetes {
    pub(crate) fn probe() -> Option<Self> {
        let account = Path::new(SERVICE_ACCOUNT);
        // A pod may have the variable without a mounted token (`automountServiceAccountToken: false`).
        if env::var_os("KUBERNETES_SERVICE_HOST").is_some() && account.join("token").exists() {
            let namespace = fs::read_to_string(account.join("namespace")).ok();
            return Some(Self::InCluster {
                namespace: namespace.map(|text| text.trim().to_owned()),
            });
        }
        let files: Vec<PathBuf> = match env::var_os("KUBECONFIG").filter(|text| !text.is_empty()) {
            Some(list) => env::split_paths(&list).collect(),
            None => vec![Path::new(&env::var_os("HOME")?).join(".kube/config")],
        };
        Self::in_files(files)
    }

    /// The first file that exists, and the first current context that one of the files names, as kubectl merges them.
    fn in_files(files: Vec<PathBuf>) -> Option<Self> {
        let mut found: Vec<(PathBuf, Option<String>)> = files
            .into_iter()
            .filter_map(|path| {
                let text = fs::read_to_string(&path).ok()?;
                Some((path, current_context(&text)))
            })
            .collect();
        let at = found.iter().position(|(_, context)| context.is_some()).unwrap_or(0);
        if found.is_empty() {
            return None;
        }
        let (path, current_context) = found.swap_remove(at);
        Some(Self::Kubeconfig { path, current_context })
    }
}

impl fmt::Display for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InCluster { namespace: Some(namespace) } => {
                write!(f, "this is a pod, in the namespace {namespace}")
            }
            Self::InCluster { namespace: None } => f.write_str("this is a pod"),
            Self::Kubeconfig { path, current_context: Some(context) } => {
                write!(f, "{} with the context {context}", path.display())
            }
            Self::Kubeconfig { path, current_context: None } => {
                write!(f, "{} without a current context", path.display())
            }
        }
    }
}

/// Value of the key `current-context`, which kubectl writes on a line of its own.
fn current_context(kubeconfig: &str) -> Option<String> {
    // An indented key belongs to another object.
    let line = kubeconfig.lines().find_map(|line| line.strip_prefix("current-context:"))?;
    // A comment in YAML needs white space before its sign, so a name may contain one.
    let name = line.split(" #").next().unwrap_or_default().trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_context_is_read() {
        let text = "apiVersion: v1\ncontexts:\n- name: a\ncurrent-context: \"kind-a\" # ours\nkind: Config\n";
        assert_eq!(current_context(text).as_deref(), Some("kind-a"));
        assert_eq!(current_context("current-context: \"\"\n"), None);
        assert_eq!(current_context("apiVersion: v1\n"), None);
    }

    #[test]
    fn the_first_file_that_names_a_context_counts() {
        let folder = env::temp_dir();
        let file = |name: &str, text: &str| {
            let path = folder.join(format!("candlepower-kube-{}-{name}", std::process::id()));
            fs::write(&path, text).unwrap();
            path
        };
        let (silent, named) =
            (file("silent", "kind: Config\n"), file("named", "current-context: b\n"));
        let files = vec![folder.join("candlepower-no-such-file"), silent.clone(), named.clone()];
        let found = Kubernetes::in_files(files);
        let expected =
            Kubernetes::Kubeconfig { path: named.clone(), current_context: Some("b".into()) };
        assert_eq!(found, Some(expected));
        assert_eq!(Kubernetes::in_files(vec![folder.join("candlepower-no-such-file")]), None);
        for path in [silent, named] {
            fs::remove_file(path).unwrap();
        }
    }
}
