// A heap that is there when the program is attached: it says "ready" and "half", reads a line after each, and
// goes through all of it, replaces parts and collects.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;

public class Attached {
    static long[] entry(int i) {
        long[] words = new long[24];
        words[i % 24] = i;
        return words;
    }

    public static void main(String[] arguments) throws Exception {
        int entries = Integer.parseInt(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        ArrayList<long[]> all = new ArrayList<>();
        for (int i = 0; i < entries; i++)
            all.add(entry(i));
        for (String said : new String[] {"ready", "half"}) {
            System.out.println(said);
            in.readLine();
            Thread[] threads = new Thread[4];
            for (int t = 0; t < threads.length; t++) {
                int first = t;
                threads[t] = new Thread(() -> {
                    for (int i = first; i < entries; i += 4)
                        if (all.get(i)[i % 24] != i)
                            System.exit(1);
                });
                threads[t].start();
            }
            for (Thread t : threads)
                t.join();
            for (int i = 0; i < entries; i += 3)
                all.set(i, entry(i));
            System.gc();
            // A fault of the program's own.
            String nothing = entries < 0 ? "" : null;
            try {
                nothing.length();
                System.exit(2);
            } catch (NullPointerException expected) {
            }
        }
        System.out.println("end");
    }
}
