//! Turns arbitrary bytes into a program that half repeats itself, and lets the shadow judge. Shared by the fuzz target and a unit test.

use arbitrary::{Result, Unstructured};
use elbowroom_alloc::{Release, Settings};
use elbowroom_ir::search::Budget;

use super::shadow::{Program, Shadow};

/// Panics if two living blocks overlap, a living block is forgotten, or one that is not there is freed.
pub fn check(bytes: &mut Unstructured<'_>) -> Result<()> {
    let granule = *bytes.choose(&[64usize, 512])?;
    let history = *bytes.choose(&[16usize, 200, 4096])?;
    let mut shadow =
        Shadow::with(Settings::default().granule(granule).history(history).budget(Budget::evaluations(2)));
    let length = bytes.int_in_range(1..=24usize)?;
    let mut pattern = Vec::with_capacity(length);
    for _ in 0..length {
        let size = *bytes.choose(&[0, 1, 64, 64, 100, 640, 4096, 4096, 5000, 1 << 20])?;
        pattern.push((size, bytes.int_in_range(1..=length + 2)?));
    }
    let mut program = Program::new(pattern);
    let marked = bytes.ratio(1, 5)?;
    let noisy = bytes.ratio(3, 4)?;
    for _ in 0..bytes.int_in_range(3..=14u8)? {
        if marked {
            shadow.sequence.mark_iteration();
        }
        for (size, span) in program.pattern.clone() {
            if !noisy || !bytes.ratio(1, 12)? {
                program.request(&mut shadow, size, span);
                continue;
            }
            match bytes.int_in_range(0..=11u8)? {
                0 => {}
                1 => program.request(&mut shadow, size * 2 + 64, span),
                2 => program.request(&mut shadow, size / 3, span),
                3 => program.request(&mut shadow, size, 4 * span),
                4 => {
                    program.request(&mut shadow, size + 1, 1);
                    program.request(&mut shadow, size, span);
                }
                5 => shadow.sequence.interrupt(),
                6 => shadow.sequence.resume(),
                7 => {
                    // Freed ahead of its time, and then once more when the program thinks it is due.
                    let living = shadow.living();
                    if !living.is_empty() {
                        shadow.free(living[bytes.choose_index(living.len())?].address);
                    }
                }
                8 => {
                    let stranger = bytes.arbitrary::<usize>()?;
                    if shadow.living().iter().all(|block| block.address != stranger) {
                        assert_ne!(shadow.release(stranger), Release::Freed);
                    }
                }
                9 => {
                    shadow.request(size, 4096);
                }
                10 => {
                    for extra in 0..20 {
                        program.request(&mut shadow, 9 + extra * size, 2);
                    }
                }
                _ => shadow.sequence.mark_iteration(),
            }
        }
    }
    let stats = shadow.stats();
    assert!(stats.planned <= stats.requests && stats.planned_bytes <= stats.bytes);
    Ok(())
}
