; As heap.py, 800,000 entries.
(let ((d (make-hash-table :test 'equal)) (x 12345) (h 0))
  (dotimes (i 800000)
    (setf x (logand (+ (* x 1103515245) 12345) #x7fffffff))
    (setf (gethash (format nil "k~d" x) d) (list i (format nil "v~d" (mod x 1000)))))
  (maphash (lambda (k v) (setf h (logand (+ h (* (first v) (length k)) (length (second v))) #xffffffff))) d)
  (format t "~d ~d~%" (hash-table-count d) h))
