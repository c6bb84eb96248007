//! Tests of the interpreter: small programs whose results the manual defines, and programs with errors.

use super::*;

/// A kernel `k` with these declarations and instructions. The body can use registers of every kind. The address of the
/// output is in %rd0.
fn program(before: &str, body: &str) -> Program {
    Program::new(&format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n{before}
.visible .entry k(
    .param .u64 k_param_0
)
{{
    .reg .pred %p<9>;
    .reg .b32 %r<9>;
    .reg .f32 %f<9>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd0, [k_param_0];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.s64 %rd1, %rd0, %rd1;
    {body}
    ret;
}}
"
    ))
}

/// Runs a block of `threads` threads. Returns one word of memory for each thread; every word is 7 before the kernel
/// runs.
fn run_block(program: &Program, threads: usize) -> Vec<u32> {
    let out = vec![7_u32; threads];
    let first = out.as_ptr() as u64;
    let known =
        |at: u64, bytes: usize| at >= first && at + bytes as u64 <= first + size_of_val(&out[..]) as u64;
    let grid = Grid { blocks: [1; 3], threads: [threads as u32, 1, 1], shared: 256 };
    assert!(run(program, "k", grid, &[(&raw const first).cast()], &known));
    out
}

fn run_lines(body: &str) -> Vec<u32> {
    run_block(&program("", body), 64)
}

/// Returns the message of the panic that `body` causes.
fn fault(body: &str) -> String {
    let program = program(".extern .shared .align 16 .b8 room[];\n", body);
    let end = std::panic::catch_unwind(|| run_block(&program, 64)).unwrap_err();
    end.downcast_ref::<String>().cloned().unwrap_or_else(|| (*end.downcast_ref::<&str>().unwrap()).to_owned())
}

#[test]
fn lanes_that_part_meet_again_and_give_each_other_values() {
    let found = run_lines(
        "setp.lt.u32 %p0, %r0, 8;
        @%p0 bra $low;
        mov.u32 %r1, 100;
        bra.uni $both;
        $low:
        mov.u32 %r1, 200;
        $both:
        add.s32 %r1, %r1, %r0;
        shfl.sync.bfly.b32 %r2|%p1, %r1, 8, 31, -1;
        st.global.u32 [%rd1], %r2;",
    );
    let expected = |thread: u32| {
        let from = thread ^ 8;
        from + if from < 8 { 200 } else { 100 }
    };
    assert_eq!(found, (0..64).map(expected).collect::<Vec<_>>());
}

/// Tests `bfi` as the manual defines it: it inserts the first bits of one value into another one, from a given bit on.
/// Bits beyond the end of the value are dropped.
#[test]
fn bits_are_put_into_others() {
    let inserted = |first: u32, count: u32| {
        run_lines(&format!(
            "mov.u32 %r1, -1;
            mov.u64 %rd2, 0xff00000000000000;
            mov.u64 %rd3, 0x123456789abcdef;
            bfi.b64 %rd4, %rd3, %rd2, {first}, {count};
            bfi.b32 %r2, %r0, %r1, {first}, {count};
            mov.b64 {{%r3, %r4}}, %rd4;
            setp.eq.u32 %p0, %r0, 1;
            selp.b32 %r2, %r3, %r2, %p0;
            setp.eq.u32 %p0, %r0, 2;
            selp.b32 %r2, %r4, %r2, %p0;
            st.global.u32 [%rd1], %r2;"
        ))[..4]
            .to_vec()
    };
    assert_eq!(inserted(8, 4), [0xffff_f0ff, 0xf00, 0xff00_0000, 0xffff_f3ff]);
    assert_eq!(inserted(24, 32), [0x00ff_ffff, 0xef00_0000, 0xff89_abcd, 0x03ff_ffff]);
    assert_eq!(inserted(0, 64), [0, 0x89ab_cdef, 0x0123_4567, 3]);
    assert_eq!(inserted(64, 8), [u32::MAX, 0, 0xff00_0000, u32::MAX]);
    assert_eq!(inserted(8, 0), [u32::MAX, 0, 0xff00_0000, u32::MAX]);
}

#[test]
fn a_barrier_holds_the_warps_of_a_block_together_and_copies_come_when_they_are_waited_for() {
    let both = program(
        ".extern .shared .align 16 .b8 room[];\n",
        "mov.u32 %r3, room;
        shl.b32 %r4, %r0, 2;
        add.s32 %r4, %r3, %r4;
        st.shared.u32 [%r4], %r0;
        bar.sync 0;
        xor.b32 %r5, %r0, 32;
        shl.b32 %r5, %r5, 2;
        add.s32 %r5, %r3, %r5;
        ld.shared.u32 %r6, [%r5];
        st.global.u32 [%rd1], %r6;",
    );
    assert_eq!(run_block(&both, 64), (0..64).map(|thread| thread ^ 32).collect::<Vec<_>>());
    // The copied words are 7. Before the copy, shared memory holds other values.
    let copied = |bytes: &str, wait: &str| {
        let program = program(
            ".extern .shared .align 16 .b8 room[];\n",
            &format!(
                "mov.u32 %r3, room;
                setp.ne.s32 %p0, %r0, 0;
                @%p0 bra $done;
                cp.async.cg.shared.global [%r3], [%rd0], 16{bytes};
                cp.async.commit_group;
                {wait}
                ld.shared.u32 %r4, [%r3+4];
                add.s32 %r4, %r4, 1;
                st.global.u32 [%rd0], %r4;
                $done:"
            ),
        );
        run_block(&program, 64)[0]
    };
    assert_eq!(copied("", "cp.async.wait_group 0;"), 8);
    assert_eq!(copied(", 16", "cp.async.wait_group 0;"), 8);
    assert_eq!(copied(", 0", "cp.async.wait_group 0;"), 1, "the copied zero, plus one");
    assert_eq!(copied(", 5", "cp.async.wait_group 0;"), 8, "one byte of the second word, plus one");
    assert_eq!(copied("", "cp.async.wait_group 1;"), 0, "uninitialised memory (-1), plus one");
}

#[test]
fn pieces_that_are_copied_are_there_once_all_lanes_have_come_and_somebody_waits() {
    let copied = |lanes: u32, parity: u32, bytes: u32| {
        let program = program(
            ".extern .shared .align 16 .b8 room[];\n",
            &format!(
                "mov.u32 %r3, room;
                add.s32 %r6, %r3, 64;
                setp.ne.s32 %p0, %r0, 0;
                @%p0 bra $begun;
                mbarrier.init.shared.b64 [%r6], {lanes};
                mbarrier.arrive.expect_tx.shared.b64 %rd2, [%r6], 16;
                cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0], {bytes}, [%r6];
                $begun:
                bar.sync 0;
                mbarrier.try_wait.parity.shared.b64 %p0, [%r6], {parity};
                selp.u32 %r5, 1, 0, %p0;
                ld.shared.u32 %r4, [%r3+4];
                add.s32 %r4, %r4, %r5;
                st.global.u32 [%rd1], %r4;"
            ),
        );
        run_block(&program, 64)
    };
    assert_eq!(copied(1, 0, 16), [8; 64], "a copied word, plus one for the completed copy");
    for (lanes, parity, bytes) in [(2, 0, 16), (1, 1, 16), (1, 0, 0), (1, 0, 8), (1, 0, 32)] {
        let ends = std::panic::catch_unwind(|| copied(lanes, parity, bytes)).is_err();
        assert!(ends, "{lanes} lanes, phase {parity}, {bytes} bytes");
    }
}

#[test]
fn a_function_is_called_with_values_of_its_own() {
    let twice = ".func (.param .b32 func_retval0) twice(.param .b32 twice_param_0)
    {
        .reg .b32 %r<3>;
        .reg .pred %p<2>;
        ld.param.u32 %r1, [twice_param_0];
        setp.gt.u32 %p1, %r1, 50;
        @%p1 ret;
        add.s32 %r2, %r1, %r1;
        st.param.b32 [func_retval0+0], %r2;
        ret;
    }";
    let call = "{
        .param .b32 param0;
        st.param.b32 [param0+0], %r1;
        .param .b32 retval0;
        st.param.b32 [retval0+0], %r0;
        call.uni (retval0), twice, (param0);
        ld.param.b32 %r1, [retval0+0];
    }";
    let body = format!("mov.u32 %r1, %r0; {call} {call} st.global.u32 [%rd1], %r1;");
    let expected = |x: u32| if x > 50 { x } else { 2 * x };
    let expected = (0..64).map(|thread| {
        let once = expected(thread);
        if once > 50 { thread } else { 2 * once }
    });
    assert_eq!(run_block(&program(twice, &body), 64), expected.collect::<Vec<_>>());
}

#[test]
fn what_has_no_defined_result_ends_the_run() {
    for (body, words) in [
        ("st.global.u32 [%rd1+1], %r0;", "4 bytes at"),
        ("st.global.v2.u32 [%rd1+4], {%r0, %r0};", "aligned"),
        ("st.global.u32 [%rd1+256], %r0;", "not allocated"),
        ("st.shared.u32 [256], %r0;", "not allocated"),
        ("mov.u32 %r3, room; st.shared.u32 [%r3+256], %r0;", "not allocated"),
        (
            "setp.lt.u32 %p0, %r0, 8; @%p0 bra $on; shfl.sync.bfly.b32 %r2, %r0, 8, 31, 255; $on:",
            "does not name them",
        ),
        (
            "setp.lt.u32 %p0, %r0, 8; @%p0 ret; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5];",
            "not all lanes of the warp",
        ),
        (
            "setp.lt.u32 %p0, %r0, 8; @%p0 bra $a; shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1; bra.uni $b; $a: bar.warp.sync -1; $b:",
            "do not come",
        ),
        ("setp.lt.u32 %p0, %r0, 8; @%p0 bar.sync 0;", "a barrier that only some lanes reach"),
    ] {
        let said = fault(body);
        assert!(said.contains(words), "{body}: {said}");
    }
    let unknown = std::panic::catch_unwind(|| program("", "ex2.approx.f32 %f1, %f2;")).err();
    assert!(unknown.is_some(), "an unknown instruction must not be parsed");
}
