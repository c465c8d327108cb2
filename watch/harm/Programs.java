/** A Java program that is right: it writes to pinned memory beside a copy, and its own faults are its own. */
public final class Programs {
    private static native java.nio.ByteBuffer begin();

    private static native void end();

    private static int length(String text) {
        return text.length(); // compiled, the virtual machine finds null by a fault
    }

    private static int deep(int calls) {
        return calls + deep(calls + 1);
    }

    private static long faults() {
        long caught = 0;
        for (int round = 0; round < 20_000; ++round) {
            try {
                length(round % 100 == 0 ? null : "x");
            } catch (NullPointerException error) {
                ++caught;
            }
        }
        try {
            deep(0);
        } catch (StackOverflowError error) {
            ++caught;
        }
        return caught;
    }

    private static long writes() {
        java.nio.ByteBuffer free = begin();
        long sum = 0;
        for (int round = 0; round < 300; ++round) {
            free.put(round % 64, (byte) round);
            sum += free.get(round % 64);
        }
        end();
        return sum;
    }

    public static void main(String[] arguments) throws InterruptedException {
        System.out.println("faults " + faults());
        if (arguments.length > 0) {
            System.load(arguments[0]);
            System.out.println("writes " + writes());
            Thread other = new Thread(() -> System.out.println("faults " + faults()));
            other.start();
            other.join();
        }
    }
}
