//! The limit of a service: a server of plain arrays that does the same gather and update with no protocol at all, over TCP
//! or a Unix socket.
//!
//! A request is a head (the number of keys, and whether it is a push), the keys, and gradients for a push; an answer is the
//! rows, or a byte. What came is read at once, and gradients are applied as they come.

use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, RwLock};

use super::Store;
use super::limits::{self, Array};
use super::workload::initial_weight;

const LEARNING_RATE: f32 = 0.01;
/// Rows whose gradients are applied together: few enough that they are still in the caches.
const BLOCK: usize = 512;

/// A connection of either kind.
trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// Serves a table to any number of clients, on a Unix socket if there is a path, until the process ends. `started` gets
/// the address.
pub fn serve(rows: usize, dim: usize, unix: Option<&Path>, started: impl FnOnce(&str)) -> io::Result<()> {
    let table = Arc::new(RwLock::new(Array::new((0..rows * dim).map(|i| initial_weight((i / dim) as u64, i % dim)))));
    let answer_all = |stream: Box<dyn Stream>| {
        let table = Arc::clone(&table);
        // A client that is gone is no error.
        std::thread::spawn(move || answer(stream, &table, dim));
    };
    match unix {
        Some(path) => {
            let listener = UnixListener::bind(path)?;
            started(&format!("unix:{}", path.display()));
            listener.incoming().try_for_each(|stream| stream.map(|stream| answer_all(Box::new(stream))))
        }
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            started(&listener.local_addr()?.to_string());
            listener.incoming().try_for_each(|stream| {
                let stream = stream?;
                set_up(&stream)?;
                answer_all(Box::new(stream));
                Ok(())
            })
        }
    }
}

/// As hotrow's connections are (`src/tcp.rs`): what is small is sent at once, and nothing is paced.
fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_tcp_congestion(b"reno")
}

fn answer(stream: Box<dyn Stream>, table: &RwLock<Array<f32>>, dim: usize) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut head, mut keys, mut rows) = ([0u64], Vec::new(), Vec::new());
    loop {
        stream.read_exact(bytemuck::cast_slice_mut(&mut head))?;
        keys.resize((head[0] >> 1) as usize, 0u64);
        stream.read_exact(bytemuck::cast_slice_mut(&mut keys))?;
        if head[0] & 1 == 0 {
            rows.resize(keys.len() * dim, 0.0f32);
            limits::gather_f32(table.read().unwrap().as_ref(), dim, &keys, &mut rows);
            stream.get_mut().write_all(bytemuck::cast_slice(&rows))?;
        } else {
            rows.resize(BLOCK * dim, 0.0f32);
            for keys in keys.chunks(BLOCK) {
                let gradients = &mut rows[..keys.len() * dim];
                stream.read_exact(bytemuck::cast_slice_mut(gradients))?;
                limits::sgd(table.write().unwrap().as_mut(), dim, keys, gradients, LEARNING_RATE);
            }
            stream.get_mut().write_all(&[1])?;
        }
    }
}

/// A client of it.
pub struct Bare {
    stream: Box<dyn Stream>,
    /// The head and the keys, sent as one.
    request: Vec<u64>,
}

impl Bare {
    pub fn connect(address: &str) -> Bare {
        let stream: Box<dyn Stream> = match address.strip_prefix("unix:") {
            Some(path) => Box::new(UnixStream::connect(path).unwrap()),
            None => {
                let stream = TcpStream::connect(address).unwrap();
                set_up(&stream).unwrap();
                Box::new(stream)
            }
        };
        Bare { stream, request: Vec::new() }
    }

    fn ask(&mut self, keys: &[u64], push: bool) -> io::Result<()> {
        self.request.clear();
        self.request.push((keys.len() as u64) << 1 | u64::from(push));
        self.request.extend_from_slice(keys);
        self.stream.write_all(bytemuck::cast_slice(&self.request))
    }
}

impl Store for Bare {
    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> anyhow::Result<()> {
        self.ask(keys, false)?;
        Ok(self.stream.read_exact(bytemuck::cast_slice_mut(out))?)
    }

    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> anyhow::Result<()> {
        self.ask(keys, true)?;
        self.stream.write_all(bytemuck::cast_slice(gradients))?;
        Ok(self.stream.read_exact(&mut [0u8])?)
    }
}
