//! A channel between two processes of this machine: whole words in order, with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sigma_net::descriptors;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Most descriptors that the kernel lets pass with one word is 253.
pub(super) const DESCRIPTORS: usize = 128;

/// The longest word in bytes; the longest that is said is why a start has failed.
pub(crate) const WORD_BYTES: usize = 64 << 10;

/// One end of a channel.
#[derive(Debug)]
pub(crate) struct Channel(AsyncFd<OwnedFd>);

/// A word, with the descriptors that came with it.
pub(crate) type Heard<W> = (W, Vec<OwnedFd>);

impl Channel {
    /// A channel, and its other end for another process. Within a runtime.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Channel::over(own)?, other))
    }

    /// The channel whose end this is. Within a runtime.
    ///
    /// # Errors
    /// Returns an error if it is not one.
    pub(crate) fn over(end: OwnedFd) -> io::Result<Channel> {
        if rustix::net::sockopt::socket_type(&end)? != SocketType::SEQPACKET {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the descriptor is not a channel between processes",
            ));
        }
        rustix::io::ioctl_fionbio(&end, true)?;
        descriptors::watch(end, Interest::READABLE | Interest::WRITABLE).map(Channel)
    }

    /// Sends a word. Surplus descriptors go with the same word sent again; the receiver adds them up.
    ///
    /// # Errors
    /// Returns an error if the other end has gone.
    pub(crate) async fn say<W: Serialize>(&self, word: &W, descriptors: &[OwnedFd]) -> io::Result<()> {
        let text = serde_json::to_vec(word)?;
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut parts = borrowed.chunks(DESCRIPTORS);
        let mut next = Some(parts.next().unwrap_or_default());
        while let Some(part) = next {
            self.0.async_io(Interest::WRITABLE, |socket| send(socket, &text, part)).await?;
            next = parts.next();
        }
        Ok(())
    }

    /// Says a word if the other end can take it at once.
    ///
    /// # Errors
    /// Returns an error if it cannot, or has gone.
    pub(crate) fn try_say<W: Serialize>(&self, word: &W) -> io::Result<()> {
        send(self.0.get_ref(), &serde_json::to_vec(word)?, &[])
    }

    /// The next word; None if the other end has gone.
    ///
    /// # Errors
    /// Returns an error if it cannot be read.
    pub(crate) async fn hear<W: DeserializeOwned>(&self) -> io::Result<Option<Heard<W>>> {
        let received = self.0.async_io(Interest::READABLE, receive).await?;
        let Some((text, descriptors)) = received else { return Ok(None) };
        Ok(Some((serde_json::from_slice(&text)?, descriptors)))
    }

    /// The end itself, to leave it to another program.
    pub(crate) fn into_end(self) -> OwnedFd {
        self.0.into_inner()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// Says a word without waiting, where there is no runtime.
///
/// # Errors
/// Returns an error if the other end has gone, or has not read many earlier words.
pub(super) fn say_now<W: Serialize>(end: &OwnedFd, word: &W) -> io::Result<()> {
    send(end, &serde_json::to_vec(word)?, &[])
}

fn send(socket: &OwnedFd, text: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    sendmsg(socket, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// None at the end.
fn receive(socket: &OwnedFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut text = vec![0; WORD_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut text)];
    let received = match recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
        // It was ended with words of ours unread.
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        received => received?,
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message is incomplete; check the limit on open files",
        ));
    }
    text.truncate(received.bytes);
    Ok((!text.is_empty()).then_some((text, descriptors)))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[tokio::test]
    async fn words_and_descriptors_arrive_whole() {
        let (here, there) = Channel::pair().unwrap();
        let there = Channel::over(there).unwrap();
        let files: Vec<OwnedFd> = (0..300).map(|_| File::open("/dev/null").unwrap().into()).collect();
        let (said, heard) = tokio::join!(here.say(&"take", &files), async {
            let mut count = 0;
            while count < 300 {
                let (word, descriptors) = there.hear::<String>().await.unwrap().unwrap();
                assert_eq!(word, "take");
                count += descriptors.len();
            }
            count
        });
        assert_eq!((said.unwrap(), heard), ((), 300));
        there.say(&7, &[]).await.unwrap();
        assert!(here.hear::<String>().await.is_err(), "a number is not text");
        drop(there);
        assert!(here.hear::<String>().await.unwrap().is_none());
        assert!(here.say(&"too late", &[]).await.is_err());
    }

    #[tokio::test]
    async fn only_a_channel_is_one() {
        assert!(Channel::over(File::open("/dev/null").unwrap().into()).is_err());
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(Channel::over(stream.into()).is_err());
    }
}
