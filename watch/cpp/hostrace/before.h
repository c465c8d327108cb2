// Functions of which ours can only run in front: they return twice, or look at who called them.
#pragma once

// Calls `before` with the first two arguments, and goes on in the function that it names with all that there were.
#if defined(__x86_64__)
#define HOSTRACE_BEFORE(name, before)                                                                                \
    __asm__(".pushsection .text\n.globl " #name "\n.type " #name ", @function\n" #name                               \
            ":\n.cfi_startproc\nendbr64\npush %rdi\n.cfi_adjust_cfa_offset 8\npush %rsi\n.cfi_adjust_cfa_offset 8\n" \
            "sub $8, %rsp\n.cfi_adjust_cfa_offset 8\ncall " #before                                                  \
            "\nadd $8, %rsp\n.cfi_adjust_cfa_offset -8\npop %rsi\n.cfi_adjust_cfa_offset -8\npop %rdi\n"             \
            ".cfi_adjust_cfa_offset -8\njmp *%rax\n.cfi_endproc\n.size " #name ", . - " #name "\n.popsection\n")
#elif defined(__aarch64__)
#define HOSTRACE_BEFORE(name, before)                                                                            \
    __asm__(".pushsection .text\n.globl " #name "\n.type " #name ", %function\n" #name                           \
            ":\nhint 34\nstp x29, x30, [sp, #-32]!\nstp x0, x1, [sp, #16]\nbl " #before                          \
            "\nmov x16, x0\nldp x0, x1, [sp, #16]\nldp x29, x30, [sp], #32\nbr x16\n.size " #name ", . - " #name \
            "\n.popsection\n")
#endif
