// A heap that is there when the program is attached: it says "ready" and "half", reads a line after each,
// and goes through all of it with threads, signals, collections and children.
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
)

type entry struct {
	key  int
	text string
}

func main() {
	entries, _ := strconv.Atoi(os.Args[1])
	in := bufio.NewReader(os.Stdin)
	all := make(map[int]*entry)
	for i := 0; i < entries; i++ {
		all[i] = &entry{i, strconv.Itoa(i)}
	}
	for _, said := range []string{"ready", "half"} {
		fmt.Println(said)
		in.ReadString('\n')
		var group sync.WaitGroup
		for t := 0; t < 8; t++ {
			group.Add(1)
			go func() {
				defer group.Done()
				runtime.LockOSThread()
				for i := t; i < entries; i += 8 {
					if e := all[i]; e.key != i || e.text != strconv.Itoa(i) {
						fmt.Println("entry", i)
						os.Exit(1)
					}
				}
			}()
		}
		group.Wait()
		for i := 0; i < entries; i += 3 {
			all[i] = &entry{i, strconv.Itoa(i)}
		}
		runtime.GC()
		out, err := exec.Command("echo", "child").Output()
		if err != nil || string(out) != "child\n" {
			fmt.Println(err)
			os.Exit(2)
		}
	}
	fmt.Println("end")
}
