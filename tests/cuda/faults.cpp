// Kernels with one fault each, and a program that runs the one with the given name. A test checks that the emulation
// detects each fault.
#include "emulate.cpp"
#include "kernels.cpp"

int main(int count, char** words) {
    unsigned grid[3] = {2, 1, 1}, block[3] = {count > 2 ? static_cast<unsigned>(atoi(words[2])) : 64, 1, 1};
    float out[64] = {};
    float* at = out;
    void* args[] = {&at};
    return count < 2 ? 2 : llt_launch(words[1], grid, block, block[0] == 256 ? 1024 + 16384 : 64, args, nullptr, nullptr);
}
