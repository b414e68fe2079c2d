//! Golden cases are calculated by hand from the rules; random streams check what must always hold.

use proptest::prelude::*;

use super::super::ExactBytes;
use super::*;

const MIB: u64 = 1 << 20;
const S0: Stream = Stream(0);
const S1: Stream = Stream(1);

fn device(capacity: u64) -> CachingAllocator {
    CachingAllocator::new(Bytes::mib(capacity), CachingOptions::default())
}

/// Allocated and reserved.
fn held(memory: &CachingAllocator) -> (Bytes, Bytes) {
    (memory.usage().allocated, memory.usage().reserved)
}

#[test]
fn small_requests_share_segments_of_two_mebibytes() {
    let mut memory = device(100);
    memory.allocate(Bytes(1), S0).unwrap();
    assert_eq!(held(&memory), (Bytes(512), Bytes::mib(2)));
    memory.allocate(Bytes::mib(1), S0).unwrap();
    assert_eq!(held(&memory), (Bytes(512 + MIB), Bytes::mib(2)));
    // 1 MiB - 512 B is left: half a kibibyte too little.
    memory.allocate(Bytes::mib(1), S0).unwrap();
    assert_eq!(held(&memory), (Bytes(512 + 2 * MIB), Bytes::mib(4)));
    // One byte more is a large request.
    memory.allocate(Bytes(MIB + 1), S0).unwrap();
    assert_eq!(held(&memory), (Bytes(1024 + 3 * MIB), Bytes::mib(24)));
}

#[test]
fn large_requests_get_twenty_mebibytes_or_their_own_size() {
    let cases = [
        // Requested; allocated; reserved.
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        // 2 MiB - 512 B are left: split off.
        (10 * MIB + 512, 10 * MIB + 512, 12 * MIB),
        // 1 MiB is left, which is not more than 1 MiB: not split off.
        (11 * MIB, 12 * MIB, 12 * MIB),
    ];
    for (bytes, allocated, reserved) in cases {
        let mut memory = device(100);
        memory.allocate(Bytes(bytes), S0).unwrap();
        assert_eq!(held(&memory), (Bytes(allocated), Bytes(reserved)), "{bytes} bytes");
    }
}

#[test]
fn the_smallest_block_that_fits_is_taken_and_freed_neighbours_join() {
    let mut memory = device(100);
    let [a, b, c] = [(); 3].map(|()| memory.allocate(Bytes::mib(4), S0).unwrap());
    let address = |memory: &CachingAllocator, allocation| memory.live[&allocation];
    assert_eq!([a, b, c].map(|allocation| address(&memory, allocation)), [0, 4 * MIB, 8 * MIB]);
    memory.free(a).unwrap();
    memory.free(c).unwrap();
    // Free are 4 MiB at 0 and, joined, 12 MiB at 8.
    let five = memory.allocate(Bytes::mib(5), S0).unwrap();
    let four = memory.allocate(Bytes::mib(4), S0).unwrap();
    assert_eq!((address(&memory, five), address(&memory, four)), (8 * MIB, 0));
    assert_eq!(memory.fragmented(), Bytes::ZERO);
    [b, five, four].into_iter().for_each(|allocation| memory.free(allocation).unwrap());
    assert_eq!(memory.blocks.len(), 1);
    assert_eq!(held(&memory), (Bytes::ZERO, Bytes::mib(20)));
    assert_eq!(memory.free(b), Err(AllocatorError::NoSuchAllocation(b)));
}

#[test]
fn cached_blocks_belong_to_a_stream() {
    let mut memory = device(100);
    let a = memory.allocate(Bytes::mib(12), S0).unwrap();
    memory.free(a).unwrap();
    memory.allocate(Bytes::mib(12), S1).unwrap();
    assert_eq!(held(&memory), (Bytes::mib(12), Bytes::mib(24)));
}

#[test]
fn a_block_waits_for_the_other_streams_that_use_it() {
    let mut memory = device(100);
    let a = memory.allocate(Bytes::mib(12), S0).unwrap();
    memory.use_on(a, S0).unwrap();
    memory.use_on(a, S1).unwrap();
    memory.use_on(a, Stream(2)).unwrap();
    memory.free(a).unwrap();
    let b = memory.allocate(Bytes::mib(12), S0).unwrap();
    assert_eq!(held(&memory), (Bytes::mib(24), Bytes::mib(24)));
    memory.passed(S1);
    assert_eq!(memory.usage().allocated, Bytes::mib(24));
    memory.passed(Stream(2));
    assert_eq!(memory.usage().allocated, Bytes::mib(12));
    memory.allocate(Bytes::mib(12), S0).unwrap();
    assert_eq!(held(&memory), (Bytes::mib(24), Bytes::mib(24)));
    memory.free(b).unwrap();
}

#[test]
fn a_full_device_gets_its_cached_segments_back_and_is_asked_again() {
    let mut memory = device(40);
    let [a, b] = [S0, S1].map(|stream| memory.allocate(Bytes::mib(20), stream).unwrap());
    memory.free(a).unwrap();
    memory.use_on(b, S0).unwrap();
    memory.free(b).unwrap();
    memory.allocate(Bytes::mib(30), S0).unwrap();
    assert_eq!(held(&memory), (Bytes::mib(30), Bytes::mib(30)));
    assert_eq!(memory.usage().peak_reserved, Bytes::mib(40));
}

#[test]
fn a_segment_that_is_in_use_stays_and_the_request_is_refused() {
    let mut memory = device(40);
    memory.allocate(Bytes::mib(4), S0).unwrap();
    let refused = memory.allocate(Bytes::mib(25), S0);
    assert_eq!(
        refused,
        Err(AllocatorError::OutOfMemory {
            wanted: Bytes::mib(26),
            stream: S0,
            allocated: Bytes::mib(4),
            reserved: Bytes::mib(20),
            capacity: Bytes::mib(40)
        })
    );
    // 16 MiB are left in the segment.
    memory.allocate(Bytes::mib(16), S0).unwrap();
    assert_eq!(held(&memory), (Bytes::mib(20), Bytes::mib(20)));
    assert!(memory.allocate(Bytes::MAX, S0).is_err());
}

#[test]
fn oversize_blocks_are_neither_split_nor_lent_to_small_requests() {
    let options = CachingOptions { max_split: Some(Bytes::mib(32)), ..CachingOptions::default() };
    let mut memory = CachingAllocator::new(Bytes::mib(100), options);
    let a = memory.allocate(Bytes::mib(40), S0).unwrap();
    memory.free(a).unwrap();
    memory.allocate(Bytes::mib(8), S0).unwrap();
    assert_eq!(held(&memory), (Bytes::mib(8), Bytes::mib(60)));
    // 40 MiB are less than 20 MiB too much for 36, and stay whole.
    let b = memory.allocate(Bytes::mib(36), S0).unwrap();
    assert_eq!(held(&memory), (Bytes::mib(48), Bytes::mib(60)));
    memory.free(b).unwrap();
    // The device has 40 MiB left; with the oversize segment given back it has room for 60.
    memory.allocate(Bytes::mib(60), S0).unwrap();
    assert_eq!(held(&memory), (Bytes::mib(68), Bytes::mib(80)));
}

#[test]
fn above_the_threshold_the_oldest_segments_are_collected() {
    let options = CachingOptions { collect_above: Some(Bytes::mib(30)), ..CachingOptions::default() };
    let mut memory = CachingAllocator::new(Bytes::mib(200), options);
    let a = memory.allocate(Bytes::mib(20), S0).unwrap();
    memory.free(a).unwrap();
    let b = memory.allocate(Bytes::mib(24), S0).unwrap();
    memory.free(b).unwrap();
    assert_eq!(memory.usage().reserved, Bytes::mib(44));
    // The segment of 20 MiB was freed a search earlier; without it 24 MiB are within the threshold.
    memory.allocate(Bytes::mib(50), S0).unwrap();
    assert_eq!(held(&memory), (Bytes::mib(50), Bytes::mib(74)));
}

#[derive(Clone, Debug)]
enum Call {
    Allocate(u64, u32),
    UseOn(prop::sample::Index, u32),
    Free(prop::sample::Index),
    Passed(u32),
    ReleaseCached,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let bytes = prop_oneof![0..4096u64, 0..3 * MIB, 0..40 * MIB];
    let call = prop_oneof![
        8 => (bytes, 0u32..3).prop_map(|(bytes, stream)| Call::Allocate(bytes, stream)),
        2 => (any::<prop::sample::Index>(), 0u32..3).prop_map(|(index, stream)| Call::UseOn(index, stream)),
        6 => any::<prop::sample::Index>().prop_map(Call::Free),
        2 => (0u32..3).prop_map(Call::Passed),
        1 => Just(Call::ReleaseCached),
    ];
    prop::collection::vec(call, 0..150)
}

/// What must hold between calls.
fn check(memory: &CachingAllocator) {
    let usage = memory.usage();
    assert!(usage.allocated <= usage.reserved && usage.reserved <= memory.capacity);
    let (mut reserved, mut allocated) = (0, 0);
    let mut free = [Free::new(), Free::new()];
    let mut before: Option<(u64, &Block)> = None;
    for (&address, block) in &memory.blocks {
        reserved += block.size;
        assert!(block.size > 0 && block.size % ROUNDING == 0);
        if block.is_free() {
            free[block.pool as usize].insert((block.stream, block.size, address));
        } else {
            allocated += block.size;
        }
        if let Some((place, neighbour)) = before.filter(|(_, neighbour)| neighbour.segment == block.segment) {
            assert_eq!(place + neighbour.size, address, "blocks of a segment lie side by side");
            assert!(!neighbour.is_free() || !block.is_free(), "free neighbours are joined");
            assert_eq!((neighbour.stream, neighbour.pool), (block.stream, block.pool));
        }
        before = Some((address, block));
    }
    assert_eq!((Bytes(reserved), Bytes(allocated)), (usage.reserved, usage.allocated));
    assert_eq!([&memory.small, &memory.large], [&free[0], &free[1]]);
    assert!(memory.live.values().all(|address| memory.blocks[address].allocated));
}

proptest! {
    #[test]
    fn blocks_tile_segments_whatever_is_called(
        calls in calls(),
        capacity in 8u64..200,
        max_split in prop::option::of(21u64..64),
        collect_above in prop::option::of(1u64..100),
    ) {
        let options = CachingOptions { max_split: max_split.map(Bytes::mib), collect_above: collect_above.map(Bytes::mib) };
        let mut memory = CachingAllocator::new(Bytes::mib(capacity), options);
        let mut exact = ExactBytes::new(Bytes::MAX);
        let mut live: Vec<(Allocation, Allocation)> = Vec::new();
        for call in calls {
            match call {
                Call::Allocate(bytes, stream) => {
                    if let Ok(made) = memory.allocate(Bytes(bytes), Stream(stream)) {
                        live.push((made, exact.allocate(Bytes(bytes), Stream(stream)).unwrap()));
                    }
                }
                Call::UseOn(index, stream) if !live.is_empty() => {
                    memory.use_on(index.get(&live).0, Stream(stream)).unwrap();
                }
                Call::Free(index) if !live.is_empty() => {
                    let (made, exactly) = live.swap_remove(index.index(live.len()));
                    memory.free(made).unwrap();
                    exact.free(exactly).unwrap();
                }
                Call::Passed(stream) => memory.passed(Stream(stream)),
                Call::ReleaseCached => memory.release_cached(),
                Call::UseOn(..) | Call::Free(_) => {}
            }
            check(&memory);
            prop_assert!(exact.usage().allocated <= memory.usage().allocated);
        }
        live.into_iter().for_each(|(made, _)| memory.free(made).unwrap());
        (0..3).for_each(|stream| memory.passed(Stream(stream)));
        prop_assert_eq!(memory.usage().allocated, Bytes::ZERO);
        memory.release_cached();
        prop_assert_eq!(memory.usage().reserved, Bytes::ZERO);
        prop_assert!(memory.blocks.is_empty());
    }
}
