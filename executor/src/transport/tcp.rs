//! Links over TCP.
//!
//! One end listens, the other connects, again whenever the connection is lost. Bytes are neither encrypted
//! nor is the other end known by more than its address: for networks that are trusted.
//!
//! A peer that vanishes without closing its connection is noticed when it does not answer
//! ([`patience`](super::link::LinkOptions::patience)).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::link::Carrier;
use crate::error::{ExecutorError, Result};

/// How long one try to connect may take.
const TRY: Duration = Duration::from_millis(250);

/// One end of a TCP connection that is made again when it is lost.
#[derive(Debug)]
pub struct Tcp {
    role: Role,
    stream: Option<TcpStream>,
}

#[derive(Debug)]
enum Role {
    Listen(TcpListener),
    Connect(SocketAddr),
}

impl Tcp {
    /// The end that waits for the other one at `address`; port 0 chooses a free one. One connection at a
    /// time; a second one waits until the first is lost.
    ///
    /// # Errors
    /// [`ExecutorError::NoLink`] when the address can not be listened on.
    pub fn listen(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|source| ExecutorError::NoLink { over: address.to_string(), source })?;
        Ok(Self { role: Role::Listen(listener), stream: None })
    }

    /// The end that connects to one that listens at `address`. A try takes at most 250 ms, in which
    /// [`Endpoint::poll`](super::link::Endpoint::poll) waits.
    pub const fn connect_to(address: SocketAddr) -> Self {
        Self { role: Role::Connect(address), stream: None }
    }

    /// Where the other end is to connect to: the address that is listened on, or the one that was given.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match &self.role {
            Role::Listen(listener) => listener.local_addr(),
            Role::Connect(address) => Ok(*address),
        }
    }

    fn stream(&mut self) -> io::Result<&mut TcpStream> {
        self.stream.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Carrier for Tcp {
    fn connect(&mut self) -> io::Result<bool> {
        let stream = match &self.role {
            Role::Listen(listener) => match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            },
            Role::Connect(address) => TcpStream::connect_timeout(address, TRY)?,
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        self.stream = Some(stream);
        Ok(true)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream()?.read(into)
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream()?.write(from)
    }

    fn close(&mut self) {
        self.stream = None;
    }
}
