//! Bytes on disk that can be trusted: a checksummed, numbered frame, kept twice in one page.
//!
//! Both copies are written by one `pwrite` inside one page, which a killed process cannot tear. Any damage to
//! one copy leaves the other; damage to both is recognised. What the payload means is for `record` and `ledger`.

/// Where the second copy begins, and the most that one copy may take.
pub(crate) const COPY: usize = 2048;

/// A whole file: two copies.
pub(crate) const PAGE: usize = 2 * COPY;

/// Magic, version, length, checksum, number.
const HEADER: usize = 20;

/// The most that a payload may take.
pub(crate) const PAYLOAD: usize = COPY - HEADER;

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
    let copies = [page.get(..page.len().min(COPY)), page.get(COPY..)];
    let mut best: Result<(u64, &[u8]), Damage> = Err(Damage::Unreadable);
    for copy in copies.into_iter().flatten() {
        match (open(copy, magic), best) {
            (Ok(found), Ok(other)) if found.0 <= other.0 => {}
            (Ok(found), _) => best = Ok(found),
            (Err(Damage::Newer), Err(_)) => best = Err(Damage::Newer),
            (Err(_), _) => {}
        }
    }
    best
}

fn open(copy: &[u8], magic: Magic) -> Result<(u64, &[u8]), Damage> {
    let header = copy.first_chunk::<HEADER>().ok_or(Damage::Unreadable)?;
    let version = u16::from_le_bytes([header[4], header[5]]);
    let length = usize::from(u16::from_le_bytes([header[6], header[7]]));
    if header[..4] != magic || length > PAYLOAD {
        return Err(Damage::Unreadable);
    }
    let payload = copy.get(HEADER..HEADER + length).ok_or(Damage::Unreadable)?;
    let stored = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if stored != checksum(header, payload) {
        return Err(Damage::Unreadable);
    }
    if version != VERSION {
        return Err(Damage::Newer);
    }
    let mut number = [0; 8];
    number.copy_from_slice(&header[12..]);
    Ok((u64::from_le_bytes(number), payload))
}

/// Writes both copies of a frame into `page` and gives the bytes to put on disk.
pub(crate) fn write<'p>(
    page: &'p mut [u8; PAGE],
    magic: Magic,
    number: u64,
    payload: &[u8],
) -> &'p [u8] {
    let length = payload.len().min(PAYLOAD);
    debug_assert_eq!(length, payload.len(), "payloads are bounded where they are built");
    let end = HEADER + length;
    {
        let copy = &mut page[..end];
        copy[..4].copy_from_slice(&magic);
        copy[4..6].copy_from_slice(&VERSION.to_le_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "at most PAYLOAD")]
        copy[6..8].copy_from_slice(&(length as u16).to_le_bytes());
        copy[12..HEADER].copy_from_slice(&number.to_le_bytes());
        copy[HEADER..].copy_from_slice(&payload[..length]);
        let (header, body) = copy.split_at(HEADER);
        let sum = header.first_chunk().map_or(0, |header| checksum(header, body));
        copy[8..12].copy_from_slice(&sum.to_le_bytes());
    }
    page[end..COPY].fill(0);
    page.copy_within(..end, COPY);
    &page[..COPY + end]
}

/// Over everything but itself.
fn checksum(header: &[u8; HEADER], payload: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&header[..8]);
    sum.update(&header[12..]);
    sum.update(payload);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: Magic = *b"TEST";

    fn page(number: u64, payload: &[u8]) -> Vec<u8> {
        write(&mut [0xAA; PAGE], MAGIC, number, payload).to_vec()
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
        newer[4] = 2;
        newer[COPY + 4] = 2;
        assert_eq!(read(&newer, MAGIC), Err(Damage::Unreadable), "the checksum covers the version");
        for copy in [0, COPY] {
            let header: [u8; HEADER] = newer[copy..copy + HEADER].try_into().unwrap();
            newer[copy + 8..copy + 12].copy_from_slice(&checksum(&header, b"x").to_le_bytes());
        }
        assert_eq!(read(&newer, MAGIC), Err(Damage::Newer));
    }
}
