//! How TCP connections are set up, on both sides.

use tokio::net::TcpStream;

/// Sets up a connection. One that cannot be set up like this works as well, but slower.
pub fn set_up(stream: &TcpStream) {
    // What is small is sent at once, too.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    if stays_on_this_host(stream) {
        // Some congestion controls, BBR for one, let a connection send no faster than it was seen to deliver; on a loopback device, which nothing
        // congests, they take its users' pauses for the limit of a link. Every kernel has this one, and lets anybody choose it.
        let _ = socket2::SockRef::from(stream).set_tcp_congestion(b"reno");
    }
}

/// Whether both ends of a connection are on this host.
pub fn stays_on_this_host(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => local.ip() == peer.ip() || peer.ip().is_loopback(),
        _ => false,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn connections_on_this_host_are_not_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        set_up(&stream);
        assert!(stays_on_this_host(&stream) && stream.nodelay().unwrap());
        let control = socket2::SockRef::from(&stream).tcp_congestion().unwrap();
        assert_eq!(control.split(|&byte| byte == 0).next(), Some(&b"reno"[..]));
    }
}
