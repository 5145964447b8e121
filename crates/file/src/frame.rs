//! Bytes on disk that can be trusted: a checksummed, numbered frame, kept twice in one page.
//!
//! Both copies are written by one `pwrite` inside one page, which a killed process cannot tear. Any
//! damage to one copy leaves the other; damage to both is recognised. What the payload means is for
//! `record` and `ledger`.

/// Where the second copy begins, and the most that one copy may take.
pub(crate) const COPY: usize = 2048;

/// A whole file: two copies.
pub(crate) const PAGE: usize = 2 * COPY;

/// Magic, checksum, version, length, number.
const HEADER: usize = 20;

/// Where the checked part of a copy begins: after the magic and the checksum.
const CHECKED: usize = 8;

/// The most that a payload may take.
const PAYLOAD: usize = COPY - HEADER;

/// What a file is for; the first bytes of each copy.
pub(crate) type Magic = [u8; 4];

/// The version of the layout, checked in every frame.
const VERSION: u16 = 1;

/// Why a page holds nothing to rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// Neither copy is whole.
    Unreadable,
    /// Whole, but of a later layout than this program knows.
    Newer,
}

/// The latest whole frame in `page`: its number and its payload.
pub(crate) fn read(page: &[u8], magic: Magic) -> Result<(u64, &[u8]), Damage> {
    let (first, second) = page.split_at_checked(COPY).unwrap_or((page, &[]));
    let first = open(first, magic);
    // The usual case: two equal copies, and one checksum says enough of both.
    if let Ok((_, _, whole)) = first
        && second.get(..whole.len()) == Some(whole)
    {
        return first.map(|(number, payload, _)| (number, payload));
    }
    let found = match (first, open(second, magic)) {
        (Ok(first), Ok(second)) => Ok(if second.0 > first.0 { second } else { first }),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        (Err(Damage::Newer), _) | (_, Err(Damage::Newer)) => Err(Damage::Newer),
        (Err(damage), Err(_)) => Err(damage),
    };
    found.map(|(number, payload, _)| (number, payload))
}

/// The number, the payload, and all bytes of one copy.
fn open(copy: &[u8], magic: Magic) -> Result<(u64, &[u8], &[u8]), Damage> {
    let header = copy.first_chunk::<HEADER>().ok_or(Damage::Unreadable)?;
    let version = u16::from_le_bytes([header[8], header[9]]);
    let length = usize::from(u16::from_le_bytes([header[10], header[11]]));
    let whole = copy.get(..HEADER + length).ok_or(Damage::Unreadable)?;
    let stored = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if header[..4] != magic || stored != crc32fast::hash(&whole[CHECKED..]) {
        return Err(Damage::Unreadable);
    }
    if version != VERSION {
        return Err(Damage::Newer);
    }
    let mut number = [0; 8];
    number.copy_from_slice(&header[12..]);
    Ok((u64::from_le_bytes(number), &whole[HEADER..], whole))
}

/// Whether a file that begins so may be one of ours: by its magic, or because nothing of it reached
/// the disk.
pub(crate) fn may_be_ours(start: &[u8], magic: Magic) -> bool {
    let length = start.len().min(magic.len());
    start[..length] == magic[..length] || start.iter().all(|byte| *byte == 0)
}

/// A page whose payload is being written, front to back.
pub(crate) struct Writer<'p> {
    page: &'p mut [u8; PAGE],
    end: usize,
}

impl<'p> Writer<'p> {
    /// Begins a payload. What stood in the page before does not matter.
    pub(crate) fn new(page: &'p mut [u8; PAGE]) -> Self {
        Self { page, end: HEADER }
    }

    /// Adds to the payload. Payloads are bounded where they are built; what is beyond the bound is
    /// cut.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let fits = bytes.len().min(COPY - self.end);
        debug_assert_eq!(fits, bytes.len(), "a payload of at most {PAYLOAD} bytes");
        self.page[self.end..self.end + fits].copy_from_slice(&bytes[..fits]);
        self.end += fits;
    }

    /// The same for a value of fixed size: a move, where a slice of any length is a call.
    #[inline]
    pub(crate) fn put_fixed<const N: usize>(&mut self, bytes: &[u8; N]) {
        match self.page[..COPY].get_mut(self.end..).and_then(<[u8]>::first_chunk_mut::<N>) {
            Some(place) => {
                *place = *bytes;
                self.end += N;
            }
            None => self.put(bytes),
        }
    }

    /// Completes both copies, and gives the bytes to put on disk.
    pub(crate) fn finish(self, magic: Magic, number: u64) -> &'p [u8] {
        let Self { page, end } = self;
        page[..4].copy_from_slice(&magic);
        page[8..10].copy_from_slice(&VERSION.to_le_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "at most PAYLOAD")]
        page[10..12].copy_from_slice(&((end - HEADER) as u16).to_le_bytes());
        page[12..HEADER].copy_from_slice(&number.to_le_bytes());
        let sum = crc32fast::hash(&page[CHECKED..end]);
        page[4..8].copy_from_slice(&sum.to_le_bytes());
        page.copy_within(..end, COPY);
        &page[..COPY + end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: Magic = *b"TEST";

    fn page(number: u64, payload: &[u8]) -> Vec<u8> {
        let mut page = [0xAA; PAGE];
        let mut writer = Writer::new(&mut page);
        writer.put(payload);
        writer.finish(MAGIC, number).to_vec()
    }

    #[test]
    fn a_frame_is_read_back() {
        for length in [0, 1, 300, PAYLOAD] {
            let payload = vec![7; length];
            assert_eq!(read(&page(9, &payload), MAGIC), Ok((9, payload.as_slice())));
        }
        assert_eq!(read(&page(9, b"x"), *b"ELSE"), Err(Damage::Unreadable));
        assert_eq!(read(&[], MAGIC), Err(Damage::Unreadable));
    }

    #[test]
    fn any_damaged_byte_leaves_the_content_as_it_was() {
        let whole = page(9, b"the payload");
        for at in 0..whole.len() {
            for flip in [1, 0x80, 0xFF] {
                let mut damaged = whole.clone();
                damaged[at] ^= flip;
                assert_eq!(read(&damaged, MAGIC), Ok((9, b"the payload".as_slice())), "byte {at}");
            }
        }
    }

    #[test]
    fn a_cut_page_is_whole_or_recognised() {
        let whole = page(9, b"the payload");
        for length in 0..whole.len() {
            let expect = if length < HEADER + 11 {
                Err(Damage::Unreadable)
            } else {
                Ok((9, b"the payload".as_slice()))
            };
            assert_eq!(read(&whole[..length], MAGIC), expect, "cut to {length}");
        }
    }

    #[test]
    fn the_later_of_two_whole_copies_counts() {
        let (old, new) = (page(8, b"old"), page(9, b"new!"));
        let mixed = [&new[..COPY], &old[COPY..]].concat();
        assert_eq!(read(&mixed, MAGIC), Ok((9, b"new!".as_slice())));
        let mixed = [&old[..COPY], &new[COPY..]].concat();
        assert_eq!(read(&mixed, MAGIC), Ok((9, b"new!".as_slice())));
    }

    #[test]
    fn a_later_layout_is_told_from_damage() {
        let mut newer = page(1, b"x");
        newer[8] = 2;
        newer[COPY + 8] = 2;
        assert_eq!(read(&newer, MAGIC), Err(Damage::Unreadable), "the checksum covers the version");
        for copy in [0, COPY] {
            let sum = crc32fast::hash(&newer[copy + CHECKED..=copy + HEADER]);
            newer[copy + 4..copy + 8].copy_from_slice(&sum.to_le_bytes());
        }
        assert_eq!(read(&newer, MAGIC), Err(Damage::Newer));
    }
}
