//! A fake model hub on this machine. It answers the requests of the hub's own clients over loopback, with faults on
//! demand.
//!
//! Two servers run, as at the real hub: the hub itself, and a store of large files under another host name, to which
//! the hub redirects clients with signed URLs.

mod api;
mod content;
mod faults;
mod files;
mod resolve;
mod storage;
mod store;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

pub(crate) use faults::{Fault, Spot, Times};
pub(crate) use files::Files;
pub(crate) use store::Access;
use store::Repository;

use super::wait_for;

/// Token of a user who may read everything.
pub(crate) const MEMBER_TOKEN: &str = "hf_member";
/// Token of a user who may read public repositories.
pub(crate) const OUTSIDER_TOKEN: &str = "hf_outsider";

const HUB_HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Another name for this machine, so that clients see another host.
const STORAGE_HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A running hub. It ends with the test.
pub(crate) struct Hub {
    // First, so that its tasks end before the ports are dropped.
    runtime: Runtime,
    hub: Door,
    storage: Door,
    shared: Arc<Shared>,
}

impl Hub {
    /// A hub without repositories.
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (hub, storage) = (Door::new(HUB_HOST), Door::new(STORAGE_HOST));
        let shared = Arc::new(Shared::new(storage.address));
        let mut this = Self { runtime, hub, storage, shared };
        this.accept_connections();
        this
    }

    /// The value of `HF_ENDPOINT`.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.hub.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.hub.address
    }

    pub(crate) fn storage_address(&self) -> SocketAddr {
        self.storage.address
    }

    /// Creates a repository of these files, or moves its branch `main` to a new commit with them. Returns the commit.
    pub(crate) fn publish(&self, id: &str, files: &Files) -> String {
        self.publish_branch(id, "main", files)
    }

    /// Like [`publish`](Self::publish), for another branch.
    pub(crate) fn publish_branch(&self, id: &str, branch: &str, files: &Files) -> String {
        let mut repositories = self.shared.repositories();
        repositories.entry(id.into()).or_insert_with(Repository::new).commit(branch, files)
    }

    /// Names a commit by a tag.
    pub(crate) fn tag(&self, id: &str, tag: &str, commit: &str) {
        self.change(id, |repository| repository.point(tag, commit));
    }

    /// Sets who may read the repository. At first everybody may.
    pub(crate) fn set_access(&self, id: &str, access: Access) {
        self.change(id, |repository| repository.access = access);
    }

    /// Makes the hub report this size for a file of the branch `main`.
    pub(crate) fn claim_size(&self, id: &str, path: &str, size: u64) {
        self.change(id, |repository| repository.claim_size(path, size));
    }

    /// Injects a fault into coming answers. Several faults at one spot occur in order.
    pub(crate) fn inject(&self, id: &str, spot: Spot, fault: Fault, times: Times) {
        self.change(id, |repository| repository.inject(spot, fault, times));
    }

    /// Removes all faults of a repository. Stalled bodies stay so until [`release`](Self::release).
    pub(crate) fn heal(&self, id: &str) {
        self.change(id, Repository::heal);
    }

    /// Lets stalled bodies continue.
    pub(crate) fn release(&self) {
        self.shared.released.send_modify(|count| *count += 1);
    }

    /// Makes all signed URLs so far invalid.
    pub(crate) fn expire_signatures(&self) {
        *self.shared.signing_key.lock().unwrap() += 1;
    }

    /// Closes both servers' ports and waits until nothing answers there. Running answers are finished.
    pub(crate) fn refuse_connections(&mut self) {
        for door in [&mut self.hub, &mut self.storage] {
            door.close();
        }
    }

    /// Opens the ports again, at the same addresses.
    pub(crate) fn accept_connections(&mut self) {
        let shared = &self.shared;
        self.hub
            .open(&self.runtime, logged(resolve::routes().merge(api::routes()), Side::Hub, shared));
        self.storage.open(&self.runtime, logged(storage::routes(), Side::Storage, shared));
    }

    /// All answered requests so far.
    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Forgets the requests so far.
    pub(crate) fn forget_requests(&self) {
        self.shared.seen.lock().unwrap().clear();
    }

    #[track_caller]
    fn change<T>(&self, id: &str, change: impl FnOnce(&mut Repository) -> T) -> T {
        let mut repositories = self.shared.repositories();
        change(repositories.get_mut(id).unwrap_or_else(|| panic!("{id} is not published")))
    }
}

/// The server that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Hub,
    Storage,
}

/// A request and the status of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) side: Side,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) range: Option<String>,
    pub(crate) had_token: bool,
    pub(crate) status: u16,
}

/// Shared state of both servers' handlers.
struct Shared {
    repositories: Mutex<BTreeMap<String, Repository>>,
    seen: Mutex<Vec<Seen>>,
    storage: SocketAddr,
    /// Number of the current signing key.
    signing_key: Mutex<u64>,
    /// Number of releases of stalled bodies.
    released: watch::Sender<u64>,
}

impl Shared {
    fn new(storage: SocketAddr) -> Self {
        Self {
            repositories: Mutex::default(),
            seen: Mutex::default(),
            storage,
            signing_key: Mutex::new(1),
            released: watch::Sender::new(0),
        }
    }

    fn repositories(&self) -> MutexGuard<'_, BTreeMap<String, Repository>> {
        self.repositories.lock().unwrap()
    }
}

fn logged(router: Router<Arc<Shared>>, side: Side, shared: &Arc<Shared>) -> Router {
    router.with_state(shared.clone()).layer(from_fn_with_state((side, shared.clone()), log))
    // The request is read before the handler takes it.
}

async fn log(
    State((side, shared)): State<(Side, Arc<Shared>)>,
    request: Request,
    next: Next,
) -> Response {
    let mut seen = seen(side, &request);
    let response = next.run(request).await;
    seen.status = response.status().as_u16();
    shared.seen.lock().unwrap().push(seen);
    response
}

fn seen(side: Side, request: &Request) -> Seen {
    let header = |name| {
        let value = request.headers().get(name);
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    Seen {
        side,
        method: request.method().to_string(),
        path: request.uri().path().into(),
        query: request.uri().query().map(str::to_owned),
        range: header(header::RANGE),
        had_token: header(header::AUTHORIZATION).is_some(),
        status: 0,
    }
}

/// One server's port, which can be closed and opened again.
struct Door {
    address: SocketAddr,
    /// Bound but never listening: it reserves the port while the server is closed.
    _holder: TcpSocket,
    close: Option<oneshot::Sender<()>>,
}

impl Door {
    fn new(host: Ipv4Addr) -> Self {
        let holder = bound(SocketAddr::from((host, 0)));
        Self { address: holder.local_addr().unwrap(), _holder: holder, close: None }
    }

    fn open(&mut self, runtime: &Runtime, router: Router) {
        let _context = runtime.enter();
        // The holder's socket shares the address, since it never listens.
        let listener = bound(self.address).listen(1024).unwrap();
        let (close, closed) = oneshot::channel::<()>();
        self.close = Some(close);
        let server = axum::serve(listener, router).with_graceful_shutdown(async {
            // Dropping the sender closes the server as well.
            let _ = closed.await;
        });
        runtime.spawn(async { server.await.unwrap() });
    }

    fn close(&mut self) {
        drop(self.close.take());
        wait_for("a port to close", || TcpStream::connect(self.address).is_err().then_some(()));
    }
}

/// A socket bound to this address. Others may share it while they do not listen.
fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}
