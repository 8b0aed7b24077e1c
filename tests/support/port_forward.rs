//! An API server's port forwarding to a pod: a WebSocket with two channels for the port, one for data and one for
//! errors. Source: Kubernetes, `k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go`.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures::{SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

const PROTOCOL: &str = "v4.channel.k8s.io";
const DATA: u8 = 0;
const ERRORS: u8 = 1;

/// Connects the one port of a request to a server on this machine.
pub(super) fn answer(mut request: Request, server: SocketAddr) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let port = query.split('&').find_map(|field| field.strip_prefix("ports="));
    let port: u16 = port.unwrap_or_else(|| panic!("{query} names no port")).parse().unwrap();
    let offered = text(request.headers(), "sec-websocket-protocol");
    assert!(offered.split(", ").any(|protocol| protocol == PROTOCOL), "{offered}");
    let accept = derive_accept_key(text(request.headers(), "sec-websocket-key").as_bytes());
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let socket = TokioIo::new(upgrade.await.unwrap());
        lead(WebSocketStream::from_raw_socket(socket, Role::Server, None).await, port, server)
            .await;
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept)
        .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
        .body(Body::empty())
        .unwrap()
}

async fn lead(
    mut socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>,
    port: u16,
    server: SocketAddr,
) {
    // The first message of a channel is the port in little-endian order.
    let [low, high] = port.to_le_bytes();
    for channel in [DATA, ERRORS] {
        socket.send(Message::binary(vec![channel, low, high])).await.unwrap();
    }
    let mut stream = TcpStream::connect(server).await.unwrap();
    let mut buffer = vec![0; 1 << 14];
    // Each message begins with its channel.
    buffer[0] = DATA;
    loop {
        tokio::select! {
            message = socket.next() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    assert_eq!(bytes[0], DATA);
                    stream.write_all(&bytes[1..]).await.unwrap();
                }
                // The client has closed the connection or disappeared.
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
            read = stream.read(&mut buffer[1..]) => match read {
                Ok(count) if count > 0 => {
                    let message = Message::binary(buffer[..=count].to_vec());
                    if socket.send(message).await.is_err() {
                        return;
                    }
                }
                _ => {
                    let _ = socket.close(None).await;
                    return;
                }
            },
        }
    }
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers[name].to_str().unwrap().to_owned()
}
