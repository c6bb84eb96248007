// Kernels with one fault each, and a program that runs the one that is named, so that a test sees that the emulation notices.
#include "emulate.cpp"

int main(int count, char** words) {
    unsigned grid[3] = {2, 1, 1}, block[3] = {count > 2 ? 40u : 64u, 1, 1};
    float out[64] = {};
    float* at = out;
    void* args[] = {&at};
    return count < 2 ? 2 : llt_launch(words[1], grid, block, 64, args);
}
