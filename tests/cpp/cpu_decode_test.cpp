// What the oracle keeps from state to state, the CPU implementation keeps too, bit by bit.
#define LINATTN_TESTED "cpu"
#include "reference_decode_test.cpp"
