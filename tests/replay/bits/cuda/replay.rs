//! Recording on the device, and a layer that runs again there.

use super::*;

#[test]
fn recorded_is_plain_to_the_bit_and_decode_passes_are_repeated() {
    let checkpoints: Vec<_> = checkpoints().collect();
    let models =
        checkpoints.iter().flat_map(|checkpoint| PRECISIONS.map(|precision| (checkpoint, precision)));
    for (checkpoint, precision) in sampled("models recorded on the device", models, 3) {
        let Some(device) = Cuda::of_tests(ROOM) else { return };
        let device = device.with_precision(precision);
        let cuda = Model::load(checkpoint, device.clone()).unwrap();
        for tokens in [2, 20] {
            let plain = run(&cuda, tokens, None).1;
            for select in [Select::all(), Select::stages(&[Stage::Qk]), Select::stages(&[Stage::Logits])] {
                assert!(run(&cuda, tokens, Some(&select)).1 == plain, "{precision:?}, {tokens} tokens");
            }
        }
        let before = device.repeated();
        let mut session = Session::with_capacity(&cuda, sampler(), 16).unwrap();
        for id in 0..8 {
            session.read(&[id], &mut NoProbe).unwrap();
        }
        // The first passes are captured as graphs, one for each assignment of the buffers.
        assert!(device.repeated() - before >= 4, "{} of 8", device.repeated() - before);
    }
}

#[test]
fn a_layer_that_runs_again_on_the_device_has_the_bits_of_the_pass() {
    let checkpoint = random::of_config("random", small(0), Dtype::BF16);
    let Some((cuda, _)) = both(&checkpoint, Precision::F32) else { return };
    let (frames, _) = run(&cuda, 6, Some(&Select::all()));
    assert_runs_again(cuda, 6, &frames, Some(12), "run again");
}
